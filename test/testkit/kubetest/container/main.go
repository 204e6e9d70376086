// The program of all containers in a test cluster. It writes its start to standard
// output and runs until it receives SIGTERM, which it also writes.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ignore := flag.Bool("ignore-sigterm", false, "continue after SIGTERM, so that only SIGKILL ends the container")
	flag.Parse()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Fprintln(os.Stdout, "started")
	for range stop {
		fmt.Fprintln(os.Stdout, "received SIGTERM")
		if !*ignore {
			return
		}
	}
}
