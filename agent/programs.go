package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/schema/task"
)

// workFolder holds a folder for each task that runs programs.
const workFolder = "work"

// folders makes and removes tasks' working folders. They hold nothing that
// outlives a task, so that they are removed past the FS interface.
type folders struct{ state stateDir }

// make returns a new empty folder for the agent's user alone.
func (f folders) make(taskID string) (string, error) {
	dir := f.state.file(workFolder, taskID)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, f.state.disk.system().MkdirAll(dir)
}

// remove takes a task's folder away with whatever is in it.
func (f folders) remove(taskID string, log *slog.Logger) {
	if err := os.RemoveAll(f.state.file(workFolder, taskID)); err != nil {
		log.Warn("working folder is left behind", "task_id", taskID, "err", err.Error())
	}
}

// clear takes away what a former process left.
func (f folders) clear(log *slog.Logger) {
	if err := os.RemoveAll(f.state.file(workFolder)); err != nil {
		log.Warn("working folders of a former agent are left behind", "err", err.Error())
	}
}

// programs runs programs for a task: in its folder, each in a process group of
// its own that ends with the context, with what they print kept for the
// operator. The zero value runs them where the agent is and keeps nothing.
type programs struct {
	dir string
	out io.Writer
}

// programsOf is the way a task runs programs.
func programsOf(t Task) programs { return programs{dir: t.Dir, out: t.Output} }

// run returns the first limit bytes of what the program wrote to its output and
// to its error output.
func (p programs) run(ctx context.Context, limit int, name string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = p.dir, childEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := signalGroup(cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Writer(&limited{&out, limit}), io.Writer(&limited{&errOut, limit})
	if p.out != nil {
		cmd.Stdout, cmd.Stderr = io.MultiWriter(cmd.Stdout, p.out), io.MultiWriter(cmd.Stderr, p.out)
	}
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// tail keeps the last task.MaxOutputTail bytes of what is written to it. It is
// safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = t.cut || len(t.buf)+len(b) > task.MaxOutputTail
	t.buf = append(t.buf, b[max(0, len(b)-task.MaxOutputTail):]...)
	t.buf = append(t.buf[:0], t.buf[max(0, len(t.buf)-task.MaxOutputTail):]...)
	return len(b), nil
}

// text is what is kept, as text.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	for t.cut && len(b) > 0 && len(t.buf)-len(b) < utf8.UTFMax && !utf8.RuneStart(b[0]) {
		b = b[1:] // the rest of a character that was cut
	}
	return plain(string(b))
}

// plain makes text that any database takes: valid UTF-8 without NUL, no longer
// than before.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}
