package runner

import (
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// hookDisk calls a function after each removal, and creates no file while it is broken.
type hookDisk struct {
	disk.OS
	removed func(path string)
	broken  bool
}

func (d *hookDisk) Remove(path string) error {
	err := d.OS.Remove(path)
	if d.removed != nil {
		d.removed(path)
	}
	return err
}

func (d *hookDisk) Create(path string) (disk.File, error) {
	if d.broken {
		return nil, syscall.EIO
	}
	return d.OS.Create(path)
}

// journalOn opens a journal with one accepted task.
func journalOn(t *testing.T, d *hookDisk) (*Journal, Entry) {
	t.Helper()
	s := disk.StateDir{Path: t.TempDir(), FS: d}
	require.NoError(t, s.Ensure("journal"))
	j, err := OpenJournal(s, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	e := Entry{TaskID: schema.NewID(), Seq: 1, LeaseEpoch: 1, Step: stepAccepted, ExpiresAt: time.Now(), Payload: []byte("{}")}
	require.NoError(t, j.accept(e))
	return j, e
}

// TestReportWhileOfferedAgain: a report under the previous lease that comes while a task
// is offered again does not leave a mark on the disk that hides the owed result.
func TestReportWhileOfferedAgain(t *testing.T) {
	t.Parallel()
	d := &hookDisk{}
	j, e := journalOn(t, d)
	require.NoError(t, j.update(e.TaskID, func(e *Entry) { e.Finish(task.Result{Status: task.Succeeded}) }))
	require.NoError(t, j.reported(e.TaskID, 1))
	d.removed = func(path string) {
		if strings.HasSuffix(path, ".reported") && j.mu.TryLock() { // else the report waits for the lock
			j.mu.Unlock()
			require.NoError(t, j.reported(e.TaskID, 1))
		}
	}
	require.NoError(t, j.offeredAgain(e.TaskID, 2))
	require.Equal(t, []string{e.TaskID}, j.Held())
	require.NoFileExists(t, reportedFile(j.state, e.TaskID))
}

// TestUnbegunTaskNeedsJournal: a task that was left before it began is not held again
// while the disk does not record that, or a restart would not know that it may have begun.
func TestUnbegunTaskNeedsJournal(t *testing.T) {
	t.Parallel()
	d := &hookDisk{}
	j, e := journalOn(t, d)
	require.NoError(t, j.reported(e.TaskID, 1))
	d.broken = true
	require.ErrorIs(t, j.offeredAgain(e.TaskID, 2), syscall.EIO)
	require.Empty(t, j.Held())
	d.broken = false
	require.NoError(t, j.offeredAgain(e.TaskID, 2))
	require.Equal(t, []string{e.TaskID}, j.Held())
	require.NoFileExists(t, reportedFile(j.state, e.TaskID))
}

// TestFault: the journal is tried only after a failed write, or when the caller doubts the
// disk.
func TestFault(t *testing.T) {
	t.Parallel()
	d := &hookDisk{}
	j, e := journalOn(t, d)
	d.broken = true
	require.NoError(t, j.Fault(false))
	require.ErrorIs(t, j.Fault(true), syscall.EIO)
	d.broken = false
	require.NoError(t, j.Fault(false))
	d.broken = true
	require.Error(t, j.accept(Entry{TaskID: schema.NewID(), Seq: 2}))
	require.ErrorIs(t, j.Fault(false), syscall.EIO)
	d.broken = false
	require.NoError(t, j.Fault(false))
	again, err := OpenJournal(j.state, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Equal(t, e.Seq, again.floor.Seq, "the trial stores the floor")
}
