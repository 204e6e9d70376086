package libvirt

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Runner runs virsh.
type Runner interface {
	// Run runs virsh with the arguments, which contain no secret, and stdin. The error says that
	// there is no result: virsh did not start, or ctx ended, which ends virsh but not what
	// libvirt has begun.
	Run(ctx context.Context, args []string, stdin []byte) (Result, error)
}

// Result is the result of a command.
type Result struct {
	Stdout, Stderr []byte
	Exit           int
}

// errNotStarted is the error of a command that did not start.
var errNotStarted = errors.New("virsh cannot be started")

// maxOutput bounds what is read of a command's output.
const maxOutput = 32 << 20

// program is the Runner that starts processes.
type program struct {
	path, uri string
	env       []string
}

// newProgram returns the runner of the settings.
func newProgram(s Settings) program {
	env := []string{"LC_ALL=C"}
	for _, kv := range s.Env {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK"}, name) ||
			strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "LIBVIRT_") {
			env = append(env, kv)
		}
	}
	return program{path: s.Virsh, uri: s.URI, env: env}
}

// Run implements Runner.
func (p program) Run(ctx context.Context, args []string, stdin []byte) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, errors.Join(errNotStarted, err)
	}
	cmd := exec.CommandContext(ctx, p.path, append([]string{"-q", "-c", p.uri}, args...)...)
	cmd.Env = p.env
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = time.Second
	stdout, stderr := limited{max: maxOutput}, limited{max: maxStderr}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return Result{}, errors.Join(errNotStarted, err)
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return Result{stdout.text, stderr.text, exit.ExitCode()}, nil
	}
	return Result{Stdout: stdout.text, Stderr: stderr.text}, err
}

const maxStderr = 64 << 10

// limited drops what exceeds max bytes.
type limited struct {
	text []byte
	max  int
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	l.text = append(l.text, b[:min(len(b), l.max-len(l.text))]...)
	return len(b), nil
}
