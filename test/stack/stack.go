// Package stack runs a temporary development stack (gpuaas dev) for a program: Up
// starts it, and Down removes it.
package stack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

const (
	upBudget   = 5 * time.Minute
	downBudget = 5 * time.Minute
	// span is the number of ports that a stack uses, with a margin.
	span = 16
)

// Stack is a running stack.
type Stack struct {
	// Bin is the gpuaas executable, Dir the folder of the stack.
	Bin, Dir string
	// Env is the output of gpuaas dev env, as NAME=value.
	Env []string
}

// Part is one row of gpuaas dev status.
type Part struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Address string `json:"address"`
	Healthy bool   `json:"healthy"`
	Log     string `json:"log"`
}

// Up starts a stack in a new folder dir, on free ports, with additional flags for
// gpuaas dev up. The caller must call Down, also after an error.
func Up(ctx context.Context, bin, dir string, flags ...string) (*Stack, error) {
	return UpWith(ctx, bin, dir, nil, flags...)
}

// UpWith is Up with additional variables for gpuaas dev up, as NAME=value.
func UpWith(ctx context.Context, bin, dir string, env []string, flags ...string) (*Stack, error) {
	s := &Stack{Bin: bin, Dir: dir}
	port, err := FreePorts(span)
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, upBudget)
	defer cancel()
	args := append([]string{"dev", "up", "--detach", "--dir", dir, "--ports-from", fmt.Sprint(port)}, flags...)
	up := exec.CommandContext(ctx, bin, args...)
	up.Env = append(os.Environ(), env...)
	if out, err := up.CombinedOutput(); err != nil {
		return s, fmt.Errorf("dev up: %w\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, bin, "dev", "env", "--dir", dir).Output()
	if err != nil {
		return s, fmt.Errorf("dev env: %w", err)
	}
	s.Env = ParseExports(out)
	return s, nil
}

// Down stops the stack and removes its files.
func (s *Stack) Down() error {
	ctx, cancel := context.WithTimeout(context.Background(), downBudget)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.Bin, "dev", "down", "--wipe", "--dir", s.Dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("dev down: %w: %s", err, out)
	}
	return nil
}

// Getenv returns a variable of the stack's environment, "" if it is not set.
func (s *Stack) Getenv(name string) string {
	for _, kv := range s.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Command prepares the CLI with the stack's environment, without a terminal.
func (s *Stack) Command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, s.Bin, args...)
	c.Env = append(os.Environ(), s.Env...)
	return c
}

// Parts returns the stack's parts by name.
func (s *Stack) Parts(ctx context.Context) (map[string]Part, error) {
	out, err := s.Command(ctx, "dev", "status", "--dir", s.Dir, "-o", "json").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != schema.ExitUnreachable) { // a part may be down
		return nil, fmt.Errorf("dev status: %w", err)
	}
	var status struct {
		Parts []Part `json:"parts"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return nil, err
	}
	parts := make(map[string]Part, len(status.Parts))
	for _, p := range status.Parts {
		parts[p.Name] = p
	}
	return parts, nil
}

// FreePorts returns the first of n consecutive free ports. They are below the range of
// outgoing connections, which could occupy a port before the stack does.
func FreePorts(n int) (int, error) {
	const lowest, highest = 10000, 30000
	for range 50 {
		first := lowest + rand.IntN(highest-lowest-n) //nolint:gosec // any will do
		if allFree(first, n) {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d consecutive free ports found; choose some with --ports-from", n)
}

func allFree(first, n int) bool {
	for p := first; p < first+n; p++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil || l.Close() != nil {
			return false
		}
	}
	return true
}

// ParseExports parses the output of gpuaas dev env into NAME=value.
func ParseExports(out []byte) []string {
	export := regexp.MustCompile(`^export ([A-Z_]+)=(.*)$`)
	var env []string
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if m := export.FindStringSubmatch(lines.Text()); m != nil {
			env = append(env, m[1]+"="+strings.Trim(m[2], `'"`))
		}
	}
	return env
}
