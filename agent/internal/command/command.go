package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Runner runs programs for a task: in its folder, each in a process group of
// its own that is killed when the context ends, and copies their output to Output.
// The zero value runs them in the agent's folder and copies nothing.
type Runner struct {
	Dir    string
	Output io.Writer
}

// Run returns the first limit bytes of what the program wrote to its output and
// to its error output.
func (p Runner) Run(ctx context.Context, limit int, name string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = p.Dir, childEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Writer(&limited{&out, limit}), io.Writer(&limited{&errOut, limit})
	if p.Output != nil {
		cmd.Stdout, cmd.Stderr = io.MultiWriter(cmd.Stdout, p.Output), io.MultiWriter(cmd.Stderr, p.Output)
	}
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// limited keeps the first n bytes and drops the rest.
type limited struct {
	w io.Writer
	n int
}

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	keep := min(len(b), l.n)
	l.n -= keep
	if _, err := l.w.Write(b[:keep]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// childEnv is the environment of programs that the agent starts: never the
// agent's own, which may hold its token.
func childEnv() []string {
	env := []string{"LC_ALL=C"}
	for _, k := range []string{"PATH", "HOME", "USER", "TMPDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}
