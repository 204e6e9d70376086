// Command idleworker is a minimal worker of Temporal's SDK with one activity, the peer of
// an idle node agent.
package main

import (
	"context"
	"fmt"
	"os"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "idleworker:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: idleworker ADDRESS NAMESPACE")
	}
	c, err := client.Dial(client.Options{HostPort: os.Args[1], Namespace: os.Args[2]})
	if err != nil {
		return err
	}
	defer c.Close()
	w := worker.New(c, "idle-node", worker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1})
	w.RegisterActivity(work)
	return w.Run(worker.InterruptCh())
}

func work(context.Context) error { return nil }
