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
	defer stop()
	os.Exit(worker.Main(ctx, os.Getenv, os.Stderr)) //nolint:gocritic // stop has nothing left to do
}
