package main

import (
	"context"
	"io"
	"os"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/deploy/dev"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/restore"
	"github.com/gpuaas/gpuaas/worker"
)

// platform returns the commands that need the worker package, which links every
// adapter and the workflows. The CLI links none of them.
func platform() cli.Platform {
	return cli.Platform{
		Setup: setup, Check: check, RotateSecretIDs: rotateSecretIDs, Replay: worker.Replay, Promote: worker.Promote, Backup: backup, Drill: drill, RestoreMode: restoreMode, Build: worker.BuildID(), Dev: dev.NewCommand, Trace: traceCommand,
	}
}

func traceCommand(ctx context.Context, command, correlationID string) (traced context.Context, end func(exitCode int)) {
	return daemon.TraceCommand(ctx, "gpuaas", command, correlationID)
}

func restoreMode(ctx context.Context, o cli.RestoreOptions) (restore.Mode, error) {
	return worker.RestoreMode(ctx, worker.RestoreOptions{Action: worker.RestoreAction(o.Action), Reason: o.Reason, For: o.For, Actor: o.Actor, Getenv: os.Getenv})
}

func backup(ctx context.Context, file string, progress io.Writer) (cli.Backup, error) {
	b, err := worker.Backup(ctx, worker.BackupOptions{File: file, Getenv: os.Getenv, Progress: progress})
	return cli.Backup(b), err
}

func drill(ctx context.Context, file string, progress io.Writer) (diagnosis.Report, error) {
	return worker.Drill(ctx, worker.DrillOptions{File: file, Getenv: os.Getenv, Progress: progress})
}

func rotateSecretIDs(ctx context.Context, log io.Writer) error {
	return worker.RotateSecretIDs(ctx, os.Getenv, log)
}

func check(ctx context.Context, c temporal.Config) (diagnosis.Report, error) {
	return worker.Check(ctx, worker.CheckOptions{Temporal: c, Getenv: os.Getenv})
}

func setup(ctx context.Context, c temporal.Config, log io.Writer) error {
	return worker.Setup(ctx, worker.SetupOptions{Temporal: c, Getenv: os.Getenv, Progress: log})
}
