// Command gpuaas-dev-agent is the node agent with the process driver of
// development and tests.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/deploy/dev/workload"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	process := agent.WithDriver(workload.Name, func(c agent.DriverConfig) (agent.Workloads, error) {
		return workload.New(workload.Config{Dir: c.Dir, Cordoned: c.Cordoned, Changed: c.Changed, ReadOnly: c.ReadOnly, Log: c.Log})
	})
	code := agent.Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, process)
	stop()
	os.Exit(code)
}
