// Command gpuaas-worker runs lifecycle workflows and their activities.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(worker.Main(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
