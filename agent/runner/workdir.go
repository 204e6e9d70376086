package runner

import (
	"os"
	"sync"
	"unicode/utf8"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
)

// workFolder holds a folder for each task that runs programs.
const workFolder = "work"

// makeFolder returns a new empty folder that only the agent's user can access. Nothing in
// it outlives the task, so it is removed without the FS interface.
func makeFolder(state disk.StateDir, taskID string) (string, error) {
	dir := state.File(workFolder, taskID)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, state.MkdirAll(dir)
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
		b = b[1:] // the end of a truncated character
	}
	return text.Sanitize(string(b))
}
