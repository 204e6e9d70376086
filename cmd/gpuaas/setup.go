package main

import (
	"context"
	"io"
	"os"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/worker"
)

// setup runs admin setup in the worker package, which links every adapter. The CLI
// links none of them.
func setup(ctx context.Context, c temporal.Config, log io.Writer) error {
	return worker.Setup(ctx, worker.SetupOptions{Temporal: c, Getenv: os.Getenv, Progress: log})
}
