package dev

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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

// ensureServer builds an embedded server if it is missing or its sources have
// changed since the last build.
func (p programs) ensureServer(ctx context.Context, name string) error {
	path := p.find(name)
	if p.sourceTree == "" {
		_, err := p.path(name)
		return err
	}
	source := filepath.Join(p.sourceTree, "deploy", "dev", strings.TrimPrefix(name, "gpuaas-dev-"))
	sum, err := digest(source)
	if err != nil {
		return err
	}
	note := filepath.Join(filepath.Dir(p.executable), "."+name+".sources")
	seen, err := os.ReadFile(note)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if path == "" || (len(seen) > 0 && string(seen) != sum) {
		if err := p.build(ctx, source, filepath.Join(filepath.Dir(p.executable), name)); err != nil {
			return err
		}
	}
	if string(seen) == sum {
		return nil
	}
	return os.WriteFile(note, []byte(sum), privateFile)
}

// digest returns a hash of the content of a module's files.
func digest(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", filepath.Base(file), len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// build compiles an embedded server with the flags of ./task build, to share the
// compiler's cache. The program is replaced atomically.
func (p programs) build(ctx context.Context, source, target string) error {
	fmt.Fprintf(p.messages, "building %s: the first build takes about five minutes on two cores\n", filepath.Base(target))
	temp := target + ".building"
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", temp, ".")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return stackError("install Go, or run ./task build on a machine that has it", "building %s: %v", filepath.Base(target), err)
	}
	last := showProgress(p.messages, output)
	if err := cmd.Wait(); err != nil {
		return errors.Join(stackError("read the compiler output", "building %s: %v\n  %s", filepath.Base(target), err, last), os.RemoveAll(temp))
	}
	return os.Rename(temp, target)
}

// progressInterval is how often a build reports its progress.
const progressInterval = 10 * time.Second

// showProgress reads the output of go build -v, one package per line, to its end
// and returns the last lines.
func showProgress(messages io.Writer, output io.Reader) string {
	begun, reported, packages := time.Now(), time.Now(), 0
	var last []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		last = append(last[max(0, len(last)-9):], lines.Text())
		packages++
		if time.Since(reported) >= progressInterval {
			reported = time.Now()
			fmt.Fprintf(messages, "  %s, %d packages compiled\n", time.Since(begun).Round(time.Second), packages)
		}
	}
	_, _ = io.Copy(io.Discard, output) // a line that is too long must not block the compiler
	return strings.Join(last, "\n  ")
}
