// Command gpuaas-api serves the node API and the admin API, and delivers results
// of node tasks to Temporal.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/api/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(server.Main(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
