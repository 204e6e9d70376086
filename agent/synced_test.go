package agent

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// syncCounter counts the syncs of the journal and its floor.
type syncCounter struct {
	disk.OS
	n *atomic.Int32
}

func (d syncCounter) counts(path string) bool {
	return strings.Contains(path, "/journal") || strings.Contains(path, "seq-floor")
}

func (d syncCounter) Create(path string) (disk.File, error) {
	f, err := d.OS.Create(path)
	if d.counts(path) {
		f = syncedFile{f, d.n}
	}
	return f, err
}

func (d syncCounter) SyncDir(path string) error {
	if d.counts(path) {
		d.n.Add(1)
	}
	return d.OS.SyncDir(path)
}

type syncedFile struct {
	disk.File
	n *atomic.Int32
}

func (f syncedFile) Sync() error {
	f.n.Add(1)
	return f.File.Sync()
}

// TestSyncsOfTask: a task syncs its entry and its result, each as a file and a folder,
// and nothing else, because syncs are most of the cost of a small task.
func TestSyncsOfTask(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var n, runs atomic.Int32
	a := start(t, configFor(f), Deps{FS: syncCounter{n: &n}, Executors: script{task.FactsCollect: counting(&runs)}.executors()})
	p := f.Payload(task.FactsCollect, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	f.Result(p.TaskID)
	eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
	a.halt()
	require.Equal(t, int32(4), n.Load())
}
