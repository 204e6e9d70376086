// Command gpuaas-dev-agent is the node agent with the process driver and a simulated machine, for
// development and tests.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/deploy/dev/workload/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agent.Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, machine.Extras())
	stop()
	os.Exit(code)
}
