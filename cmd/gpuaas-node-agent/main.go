// Command gpuaas-node-agent runs on every node.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agent.Main(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, agent.Extras{})
	stop()
	os.Exit(code)
}
