package task

import (
	"log/slog"
	"os"
	"sync"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
)

// workFolder holds a folder for each task that runs programs.
const workFolder = "work"

// folders makes and removes tasks' working folders. They hold nothing that
// outlives a task, so that they are removed past the FS interface.
type folders struct{ state disk.StateDir }

// make returns a new empty folder for the agent's user alone.
func (f folders) make(taskID string) (string, error) {
	dir := f.state.File(workFolder, taskID)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, f.state.Files.System().MkdirAll(dir)
}

// remove removes a task's folder and its content.
func (f folders) remove(taskID string, log *slog.Logger) {
	if err := os.RemoveAll(f.state.File(workFolder, taskID)); err != nil {
		log.Warn("working folder is left behind", "task_id", taskID, "err", err.Error())
	}
}

// clear removes the folders of previous processes.
func (f folders) clear(log *slog.Logger) {
	if err := os.RemoveAll(f.state.File(workFolder)); err != nil {
		log.Warn("working folders of a former agent are left behind", "err", err.Error())
	}
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

// text returns the kept bytes as text.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	for t.cut && len(b) > 0 && len(t.buf)-len(b) < utf8.UTFMax && !utf8.RuneStart(b[0]) {
		b = b[1:] // the rest of a character that was cut
	}
	return text.Sanitize(string(b))
}
