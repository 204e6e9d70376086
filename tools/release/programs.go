package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// versionVariable is the variable that contains the version of a program.
const versionVariable = "github.com/gpuaas/gpuaas/schema/version.version"

// programsOf returns the programs of a platform: only the CLI runs on macOS.
func programsOf(p platform) []string {
	if p.os != "linux" {
		return []string{"gpuaas"}
	}
	return []string{"gpuaas", "gpuaas-api", "gpuaas-worker", "gpuaas-node-agent", "gpuaas-cluster-agent"}
}

// bin is the folder with the programs of a platform.
func (r *release) bin(p platform) string { return filepath.Join(r.work, "bin", p.os+"_"+p.arch) }

// buildPrograms builds static programs for all platforms, with the flags of
// ./task build.
func (r *release) buildPrograms(ctx context.Context) error {
	for i, p := range r.platforms {
		fmt.Fprintf(r.log, "building %d programs for %s (platform %d of %d)\n", len(programsOf(p)), p, i+1, len(r.platforms))
		args := []string{"build", "-buildvcs=true", "-trimpath", "-ldflags", "-s -w -X " + versionVariable + "=" + r.version.Described, "-o", r.bin(p) + "/"}
		for _, name := range programsOf(p) {
			args = append(args, "./cmd/"+name)
		}
		if err := os.MkdirAll(r.bin(p), 0o755); err != nil {
			return err
		}
		if err := r.command(ctx, []string{"GOOS=" + p.os, "GOARCH=" + p.arch}, "go", args...); err != nil {
			return fmt.Errorf("programs for %s: %w", p, err)
		}
	}
	return nil
}

// command runs a program in the repository's root. It ignores settings of Go in the
// environment that change the programs.
func (r *release) command(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.source, r.log, r.log
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.version.Time.Unix()))
	cmd.Env = append(cmd.Env, env...)
	return cmd.Run()
}
