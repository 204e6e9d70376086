package dev

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// programs finds the programs that the stack runs, and builds embedded servers.
type programs struct {
	// executable is the running gpuaas program. The others are next to it.
	executable string
	// sourceTree is the root of the project's source, "" if it is not available.
	sourceTree string
	// look finds a program on PATH, "" if there is none.
	look     func(string) string
	messages io.Writer
}

// find returns the path of a program of ours: next to this one or on PATH, ""
// if there is none.
func (p programs) find(name string) string {
	beside := filepath.Join(filepath.Dir(p.executable), name)
	if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
		return beside
	}
	return p.look(name)
}

// path is find with an error for a missing program.
func (p programs) path(name string) (string, error) {
	if path := p.find(name); path != "" {
		return path, nil
	}
	return "", stackError("build it with: ./task build", "cannot find %s in %s or on PATH", name, filepath.Dir(p.executable))
}

// command returns the command of an embedded server.
func (p programs) command(name string, args ...string) (command, error) {
	path, err := p.path(name)
	return command{path: path, args: args, env: inherited(os.Environ(), false)}, err
}

// findSourceTree returns the root of the project's source tree that contains a
// path, "" if none does.
func findSourceTree(from string) string {
	for dir := from; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "dev", "temporal", "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// ensureServer builds an embedded server if it is missing. ./task build rebuilds it
// after a change, like the other programs.
func (p programs) ensureServer(ctx context.Context, name string) error {
	if p.find(name) == "" && p.sourceTree != "" {
		return p.build(ctx, name)
	}
	_, err := p.path(name)
	return err
}

// build builds an embedded server with the script of ./task build, which prints
// progress.
func (p programs) build(ctx context.Context, name string) error {
	cmd := exec.CommandContext(ctx, "sh", filepath.Join("tools", "build-server.sh"), name, filepath.Dir(p.executable))
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.sourceTree, p.messages, p.messages
	if err := cmd.Run(); err != nil {
		return stackError("read the output above; the build requires Go", "building %s: %v", name, err)
	}
	return nil
}
