package main

import (
	"context"
	"os"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/worker"
)

// setup runs admin setup in the worker package, which links every adapter. The CLI
// links none of them.
func setup(ctx context.Context, o cli.SetupOptions) error {
	return worker.Setup(ctx, worker.SetupOptions{
		TemporalAddress: o.Temporal.Address, TemporalNamespace: o.Temporal.Namespace,
		Getenv: os.Getenv, Talk: o.Talk,
	})
}
