package runner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Steps of a journal entry.
const (
	stepAccepted = "accepted" // durable before the first effect
	stepFinished = "finished" // durable before the report
)

// keepAfterExpiry is how long an acknowledged entry outlives its envelope: twice
// the tolerance of the clocks, so that no replay finds the journal empty.
const keepAfterExpiry = 10 * time.Minute

// Entry is the journal's record of one task.
type Entry struct {
	TaskID     string          `json:"task_id"`
	Digest     string          `json:"digest"`  // hex SHA-256 of the signed bytes
	Payload    json.RawMessage `json:"payload"` // the signed bytes
	Seq        int64           `json:"seq"`
	LeaseEpoch int64           `json:"lease_epoch"`
	AcceptedAt time.Time       `json:"accepted_at"`
	ExpiresAt  time.Time       `json:"expires_at"`
	// ClockOffset is the node's clock minus the server's at the offer, nil when
	// unknown.
	ClockOffset *time.Duration `json:"clock_offset,omitempty"`
	Step        string         `json:"step"`
	// Memo is the executor's own record of an unfinished task.
	Memo   json.RawMessage `json:"memo,omitempty"`
	Result *task.Result    `json:"result,omitempty"`
	// ResultSHA256 is the hex SHA-256 of Result in its JSON form: a result that
	// differs from the recorded one is never reported.
	ResultSHA256 string `json:"result_sha256,omitempty"`
	// TrustedAt is the time by which the task was accepted.
	TrustedAt time.Time `json:"trusted_at,omitzero"`
	// Reported is true once the server has the result or has rejected it.
	Reported bool `json:"reported,omitempty"`

	// unsaved is true while the file does not hold the entry's latest change.
	unsaved bool
}

// Task parses the entry's payload, which was verified before it was stored.
func (e Entry) Task() (task.Payload, error) {
	var p task.Payload
	err := schema.DecodeStrict(e.Payload, wire.MaxBodyBytes, &p)
	return p, err
}

// Finish records the result in the entry.
func (e *Entry) Finish(r task.Result) {
	r.EnvelopeSHA256 = e.Digest
	data, _ := json.Marshal(r) // an error fails the writing of the entry too
	e.Step, e.Result, e.ResultSHA256, e.Memo = stepFinished, &r, schema.SHA256Hex(data), nil
}

// Verify checks a finished entry's result against its digest.
func (e Entry) Verify() error {
	if e.Step != stepFinished {
		return nil
	}
	if e.Result == nil {
		return errors.New("the entry is finished without a result")
	}
	data, err := json.Marshal(e.Result)
	if err == nil && schema.SHA256Hex(data) != e.ResultSHA256 {
		err = errors.New("the result is not the one that was recorded")
	}
	return err
}

// Journal is the durable list of tasks: one fsynced file each, and the floor of
// sequence and time below which nothing new is accepted. It is safe for
// concurrent use.
type Journal struct {
	state disk.StateDir

	mu      sync.Mutex
	entries map[string]Entry
	floor   floorFile
	stored  floorFile // what of the floor is durable
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

// OpenJournal reads the journal of previous processes. An unreadable file is
// set aside and logged, so that it does not stop the agent.
func OpenJournal(s disk.StateDir, log *slog.Logger) (*Journal, error) {
	j := &Journal{state: s, entries: map[string]Entry{}}
	if _, err := s.ReadJSON(s.File("seq-floor.json"), &j.floor); err != nil {
		return nil, err
	}
	j.stored = j.floor
	names, err := filepath.Glob(s.File("journal", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var e Entry
		_, err := s.ReadJSON(name, &e)
		if err == nil && e.TaskID != strings.TrimSuffix(filepath.Base(name), ".json") {
			err = fmt.Errorf("%s names task %q", name, e.TaskID)
		}
		if err == nil {
			_, err = e.Task()
		}
		if err == nil {
			err = e.Verify()
		}
		if err != nil {
			log.Error("journal entry put aside", "file", name, "err", err.Error())
			if err := s.Rename(name, name+".bad"); err != nil {
				return nil, err
			}
			continue
		}
		j.entries[e.TaskID] = e
		j.floor.raise(e)
	}
	return j, nil
}

func (j *Journal) path(taskID string) string { return j.state.File("journal", taskID+".json") }

// put stores e durably, then keeps it.
func (j *Journal) put(e Entry) error {
	if err := j.state.WriteJSON(j.path(e.TaskID), e); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	e.unsaved = false
	j.entries[e.TaskID] = e
	return nil
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
	if e.Seq <= j.floor.Seq {
		return refuse(reasonReplay, "sequence %d is not above %d", e.Seq, j.floor.Seq)
	}
	if err := j.put(e); err != nil {
		return err
	}
	j.floor.raise(e)
	// The entry itself holds the floor until it is pruned, and nothing is pruned
	// before the floor is stored: pruning stores it again after a failure here.
	j.storeFloor() //nolint:errcheck // see above
	return nil
}

// TimeFloor is the latest time of a grant whose task was accepted.
func (j *Journal) TimeFloor() time.Time { return j.floor.Time }

// storeFloor makes the floor durable.
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

// Holds reports whether the journal has the task with this very body.
func (j *Journal) Holds(taskID, digest string) bool {
	e, ok := j.get(taskID)
	return ok && e.Digest == digest
}

// update changes a task's entry durably.
func (j *Journal) update(taskID string, change func(*Entry)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	if !ok {
		return fmt.Errorf("journal: no task %s", taskID)
	}
	change(&e)
	return j.put(e)
}

// updateInMemory is update for a change that already happened: when the disk fails,
// memory still changes, and save makes it durable later.
func (j *Journal) updateInMemory(taskID string, change func(*Entry)) error {
	err := j.update(taskID, change)
	if err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		if e, ok := j.entries[taskID]; ok {
			change(&e)
			e.unsaved = true
			j.entries[taskID] = e
		}
	}
	return err
}

// save makes durable what updateInMemory could not.
func (j *Journal) save(taskID string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.entries[taskID]; ok && e.unsaved {
		return j.put(e)
	}
	return nil
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
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
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
		if err := j.state.Remove(j.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(j.entries, id)
	}
	return nil
}
