package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/schema"
)

// keepAfterExpiry is how long a reported entry is kept after its envelope expires: twice
// the clock tolerance, so that the journal still has every task that can be replayed.
const keepAfterExpiry = 10 * time.Minute

// Journal is the durable list of tasks: one fsynced file each, and the floor of
// sequence and time below which nothing new is accepted. It is safe for
// concurrent use.
type Journal struct {
	state disk.StateDir

	mu      sync.Mutex
	entries map[string]Entry
	damaged map[string]bool // IDs of the entries that were set aside: those tasks may have run
	floor   floorFile
	stored  floorFile // what of the floor its own file holds
	fault   error     // of the last write
}

// floorFile is the stored form of the floor: the highest sequence that was
// accepted, and the server's time then.
type floorFile struct {
	Seq  int64     `json:"seq"`
	Time time.Time `json:"time,omitzero"`
}

// raise lifts the floor to an entry.
func (f *floorFile) raise(e Entry) {
	f.Seq = max(f.Seq, e.Seq)
	if e.TrustedAt.After(f.Time) {
		f.Time = e.TrustedAt
	}
}

// OpenJournal reads the journal of previous processes. A damaged file is set aside and
// logged, so that it does not stop the agent. Its task is not accepted again.
func OpenJournal(s disk.StateDir, log *slog.Logger) (*Journal, error) {
	j := &Journal{state: s, entries: map[string]Entry{}}
	if _, err := s.ReadJSON(s.File("seq-floor.json"), &j.floor); err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "cannot read the sequence of the last task").WithNext(
			"move " + s.File("seq-floor.json") + " aside; the agent then continues at the highest sequence of its journal, and refuses expired tasks as before")
	}
	j.stored = j.floor
	list, damaged, err := Entries(s)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		j.entries[e.TaskID] = e
		j.floor.raise(e)
	}
	if err := j.setAside(damaged, log); err != nil {
		return nil, err
	}
	j.damaged, err = setAsideIDs(s)
	return j, err
}

// setAside renames damaged files, after it stored the floor that they hold.
func (j *Journal) setAside(damaged map[string]error, log *slog.Logger) error {
	for file := range damaged {
		j.floor.Seq = max(j.floor.Seq, seqOf(file))
	}
	for file, err := range damaged {
		log.Error("journal entry set aside", "file", file, "err", err.Error())
		if err := j.storeFloor(); err != nil {
			return err
		}
		if err := j.state.Rename(file, file+".bad"); err != nil {
			return err
		}
	}
	return nil
}

// storeFloor stores the floor before a file that holds it goes.
func (j *Journal) storeFloor() error {
	if j.stored == j.floor {
		return nil
	}
	if err := j.state.WriteJSON(j.state.File("seq-floor.json"), j.floor); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.stored = j.floor
	return nil
}

// put stores e durably, then keeps it.
func (j *Journal) put(e Entry) error {
	if j.fault = j.state.WriteJSON(entryFile(j.state, e), e); j.fault != nil {
		return fmt.Errorf("journal: %w", j.fault)
	}
	e.unsaved = false
	j.entries[e.TaskID] = e
	return nil
}

// Fault returns why the journal cannot be written, nil if it can. It tries if the last
// write failed, or if the caller doubts the disk.
func (j *Journal) Fault(doubt bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if doubt || j.fault != nil {
		j.stored = floorFile{Seq: -1} // none: the floor is stored again
		j.fault = j.storeFloor()
	}
	return j.fault
}

// get returns the entry of a task.
func (j *Journal) get(taskID string) (Entry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	return e, ok
}

// accept records a task before its first effect and raises the floor to its
// sequence. A task at or below the floor is refused: it is a replay.
func (j *Journal) accept(e Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.damaged[e.TaskID] {
		return refusal.New(refusal.Damaged, "the journal's entry of this task is damaged: the task may have run")
	}
	if e.Seq <= j.floor.Seq {
		return refusal.New(refusal.Replay, "sequence %d is not above %d", e.Seq, j.floor.Seq)
	}
	if err := j.put(e); err != nil {
		return err
	}
	j.floor.raise(e) // the entry's file holds the floor until storeFloor does
	return nil
}

// SeqFloor is the highest sequence of an accepted task.
func (j *Journal) SeqFloor() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.floor.Seq
}

// TimeFloor is the latest time of a grant whose task was accepted, as versions before
// stored the trusted time; see verify.OpenClock.
func (j *Journal) TimeFloor() time.Time { return j.floor.Time }

// Holds reports whether the journal has the task with this very body.
func (j *Journal) Holds(taskID, digest string) bool {
	e, ok := j.get(taskID)
	return ok && e.Digest == digest
}

// update changes a task's entry, durably unless it returns an error. The change holds
// in memory in any case, and save stores it later.
func (j *Journal) update(taskID string, change func(*Entry)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	if !ok {
		return fmt.Errorf("journal: no task %s", taskID)
	}
	change(&e)
	e.unsaved = true
	j.entries[taskID] = e
	return j.put(e)
}

// save stores what update could not.
func (j *Journal) save(taskID string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.entries[taskID]; ok && e.unsaved {
		return j.put(e)
	}
	return nil
}

// offeredAgain records the lease of another offer of a task, whose result is wanted
// again. If the disk fails, it holds in memory alone, except for a task that was left
// before it began: that one must not begin before the record is durable.
func (j *Journal) offeredAgain(taskID string, epoch int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	if !ok {
		return fmt.Errorf("journal: no task %s", taskID)
	}
	left := e.leftUnbegun()
	e.LeaseEpoch, e.Reported, e.unsaved = max(e.LeaseEpoch, epoch), false, true
	if !left {
		j.entries[taskID] = e
	}
	if err := j.state.Remove(reportedFile(j.state, taskID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	return j.put(e)
}

// reported records that nothing is owed to the server under a lease, unless the task
// was offered again meanwhile. It saves the result first if the disk failed before:
// otherwise a restart would run the task again. The record itself is not synced,
// because a second report of the same result changes nothing.
func (j *Journal) reported(taskID string, epoch int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	if !ok || e.LeaseEpoch > epoch {
		return nil
	}
	e.Reported = true
	j.entries[taskID] = e
	if e.unsaved {
		if err := j.put(e); err != nil {
			return err
		}
	}
	f, err := j.state.Create(reportedFile(j.state, taskID))
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return f.Close()
}

// unreported returns the tasks whose result the server does not have, in the
// order of their sequence.
func (j *Journal) unreported() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Entry
	for _, e := range j.entries {
		if !e.Reported {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, bySeq)
	return out
}

// Held lists the tasks whose results the server does not have.
func (j *Journal) Held() []string {
	var ids []string
	for _, e := range j.unreported() {
		ids = append(ids, e.TaskID)
	}
	return ids
}

// Prune removes reported tasks whose envelopes have expired. The floor still rejects
// them.
func (j *Journal) Prune(now time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, e := range j.entries {
		if !e.Reported || now.Before(e.ExpiresAt.Add(keepAfterExpiry)) {
			continue
		}
		if err := j.storeFloor(); err != nil {
			return err
		}
		for _, file := range []string{reportedFile(j.state, id), entryFile(j.state, e)} {
			if err := j.state.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		delete(j.entries, id)
	}
	return nil
}
