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

// findProgram answers the path of one of our programs: beside this one, then on
// PATH; "" when there is none.
func (s *stack) findProgram(name string) string {
	beside := filepath.Join(filepath.Dir(s.self), name)
	if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
		return beside
	}
	return s.look(name)
}

// program is findProgram with an error for one that is missing.
func (s *stack) program(name string) (string, error) {
	if path := s.findProgram(name); path != "" {
		return path, nil
	}
	return "", fault("build it with: ./task build", "%s is neither in %s nor on PATH", name, filepath.Dir(s.self))
}

// embedded answers the command of an embedded server, which ensureEmbedded has
// made sure of.
func (s *stack) embedded(name string, args ...string) (command, error) {
	path, err := s.program(name)
	return command{path: path, args: args, env: inherited(os.Environ(), false)}, err
}

// findTree answers the root of the project's source tree that a path lies in,
// "" when it lies in none.
func findTree(from string) string {
	for dir := from; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "dev", "temporal", "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// ensureEmbedded builds an embedded server when it is missing, or when its
// sources are not those that this stack saw it built from.
func (s *stack) ensureEmbedded(ctx context.Context, name string) error {
	path := s.findProgram(name)
	if s.tree == "" {
		_, err := s.program(name)
		return err
	}
	source := filepath.Join(s.tree, "deploy", "dev", strings.TrimPrefix(name, "gpuaas-dev-"))
	sum, err := digest(source)
	if err != nil {
		return err
	}
	note := filepath.Join(filepath.Dir(s.self), "."+name+".sources")
	seen, err := os.ReadFile(note)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if path == "" || (len(seen) > 0 && string(seen) != sum) {
		if err := s.build(ctx, source, filepath.Join(filepath.Dir(s.self), name)); err != nil {
			return err
		}
	}
	if string(seen) == sum {
		return nil
	}
	return os.WriteFile(note, []byte(sum), privateFile)
}

// digest answers a name for the content of a module's files.
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

// build compiles one embedded server with the flags of ./task build, so that
// they share the compiler's cache. The program appears whole or not at all.
func (s *stack) build(ctx context.Context, source, target string) error {
	fmt.Fprintf(s.talk, "building %s: the first time takes about five minutes on two cores\n", filepath.Base(target))
	temp := target + ".building"
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", temp, ".")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	output, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fault("install Go, or run ./task build where it is", "building %s: %v", filepath.Base(target), err)
	}
	last := showProgress(s.talk, output)
	if err := cmd.Wait(); err != nil {
		return errors.Join(fault("see what the compiler said", "building %s: %v\n  %s", filepath.Base(target), err, last), os.RemoveAll(temp))
	}
	return os.Rename(temp, target)
}

// progressEvery is how often a build says how far it is.
const progressEvery = 10 * time.Second

// showProgress reads the output of go build -v, a package a line, until it
// ends, and answers the last lines of it.
func showProgress(talk io.Writer, output io.Reader) string {
	begun, said, packages := time.Now(), time.Now(), 0
	var last []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		last = append(last[max(0, len(last)-9):], lines.Text())
		packages++
		if time.Since(said) >= progressEvery {
			said = time.Now()
			fmt.Fprintf(talk, "  %s, %d packages compiled\n", time.Since(begun).Round(time.Second), packages)
		}
	}
	_, _ = io.Copy(io.Discard, output) // a line too long to read must not stop the compiler
	return strings.Join(last, "\n  ")
}
