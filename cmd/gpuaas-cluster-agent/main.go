// Command gpuaas-cluster-agent checks the nodes of a Kubernetes cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpuaas/gpuaas/internal/clusteragent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(clusteragent.Main(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}
