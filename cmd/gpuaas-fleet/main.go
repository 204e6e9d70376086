// Command gpuaas-fleet runs many node agents in one process.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/test/fleet"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(fleet.Main(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
