package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// gate does what the agent's process driver asks of a shell, which the image does not have: it
// waits for a line on descriptor 3, and becomes the command behind the script and its name. It
// returns only if that fails.
func gate(args []string) error {
	const command = 4 // sh -c SCRIPT NAME COMMAND…
	if len(args) <= command {
		return errors.New("no command")
	}
	line := os.NewFile(3, "gate")
	if _, err := bufio.NewReader(line).ReadString('\n'); err != nil {
		return fmt.Errorf("the agent ended before it stored the process: %w", err)
	}
	if err := line.Close(); err != nil {
		return err
	}
	return syscall.Exec(args[command], args[command:], os.Environ())
}

// runWorkload is the workload of the image: it reports its start on the console, works until it
// receives the signal of a drain, and reports its end.
func runWorkload() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	report("workload: started")
	work := time.NewTicker(time.Second)
	defer work.Stop()
	for steps := 0; ; steps++ {
		select {
		case <-work.C:
		case <-stop:
			report("workload: stopped after %d steps, its work is saved", steps)
			return
		}
	}
}

// report prints a line to the console: the output of a workload goes to a file.
func report(format string, args ...any) {
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		return // there is no one to report to
	}
	defer console.Close() //nolint:errcheck // nothing is buffered
	fmt.Fprintf(console, format+"\n", args...)
}
