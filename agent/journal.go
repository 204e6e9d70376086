package agent

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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Steps of a journal entry.
const (
	stepAccepted = "accepted" // durable before the first effect
	stepFinished = "finished" // durable before the report
)

// keepAfterExpiry is how long an acknowledged entry outlives its envelope, so
// that no replay within the clock's tolerance finds the journal empty.
const keepAfterExpiry = 2 * notBeforeSkew

// entry is what the agent remembers of one task.
type entry struct {
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
	// Memo is the executor's own memory of an unfinished task.
	Memo   json.RawMessage `json:"memo,omitempty"`
	Result *task.Result    `json:"result,omitempty"`
	// ResultSHA256 is the hex SHA-256 of Result in its JSON form: a result that
	// reads but is not the one that was recorded is never reported.
	ResultSHA256 string `json:"result_sha256,omitempty"`
	// TrustedAt is the time by which the task was accepted.
	TrustedAt time.Time `json:"trusted_at,omitzero"`
	// Reported is true once the server has the result or does not want it.
	Reported bool `json:"reported,omitempty"`

	// unsaved says that the file does not hold this yet.
	unsaved bool
}

// task parses the entry's payload, which was verified before it was stored.
func (e entry) task() (task.Payload, error) {
	var p task.Payload
	err := schema.DecodeStrict(e.Payload, wire.MaxBodyBytes, &p)
	return p, err
}

// finish records the result in the entry.
func (e *entry) finish(r task.Result) error {
	r.EnvelopeSHA256 = e.Digest
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	e.Step, e.Result, e.ResultSHA256, e.Memo = stepFinished, &r, digestOf(data), nil
	return nil
}

// whole checks a finished entry's result against its digest. Entries of an older
// agent have none.
func (e entry) whole() error {
	if e.Step != stepFinished {
		return nil
	}
	if e.Result == nil {
		return errors.New("it is finished without a result")
	}
	data, err := json.Marshal(e.Result)
	if err == nil && e.ResultSHA256 != "" && digestOf(data) != e.ResultSHA256 {
		err = errors.New("its result is not the one that was recorded")
	}
	return err
}

// journal is the durable list of tasks: one fsynced file each, and the floor of
// sequence and time below which nothing new is accepted. It is safe for
// concurrent use.
type journal struct {
	state stateDir

	mu      sync.Mutex
	entries map[string]entry
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
func (f *floorFile) raise(e entry) {
	f.Seq = max(f.Seq, e.Seq)
	if e.TrustedAt.After(f.Time) {
		f.Time = e.TrustedAt
	}
}

// openJournal reads what a former process left. A file that does not read is
// put aside, loudly: it must not keep the node from working.
func openJournal(s stateDir, log *slog.Logger) (*journal, error) {
	j := &journal{state: s, entries: map[string]entry{}}
	if _, err := s.readJSON(s.file("seq-floor.json"), &j.floor); err != nil {
		return nil, err
	}
	j.stored = j.floor
	names, err := filepath.Glob(s.file("journal", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		var e entry
		_, err := s.readJSON(name, &e)
		if err == nil && e.TaskID != strings.TrimSuffix(filepath.Base(name), ".json") {
			err = fmt.Errorf("%s names task %q", name, e.TaskID)
		}
		if err == nil {
			_, err = e.task()
		}
		if err == nil {
			err = e.whole()
		}
		if err != nil {
			log.Error("journal entry put aside", "file", name, "err", err.Error())
			if err := s.disk.system().Rename(name, name+".bad"); err != nil {
				return nil, err
			}
			continue
		}
		j.entries[e.TaskID] = e
		j.floor.raise(e)
	}
	return j, nil
}

func (j *journal) path(taskID string) string { return j.state.file("journal", taskID+".json") }

// put stores e durably, then keeps it.
func (j *journal) put(e entry) error {
	if err := j.state.writeJSON(j.path(e.TaskID), e); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	e.unsaved = false
	j.entries[e.TaskID] = e
	return nil
}

// get returns the entry of a task.
func (j *journal) get(taskID string) (entry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	return e, ok
}

// accept records a task before its first effect and raises the floor to its
// sequence. A task at or below the floor is refused: it is a replay.
func (j *journal) accept(e entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Seq <= j.floor.Seq {
		return refuse(refusedReplay, "sequence %d is not above %d", e.Seq, j.floor.Seq)
	}
	if err := j.put(e); err != nil {
		return err
	}
	j.floor.raise(e)
	// The entry itself holds the floor until it is pruned, and nothing is pruned
	// before the floor is stored: a failure here is made good there.
	j.storeFloor() //nolint:errcheck // see above
	return nil
}

// storeFloor makes the floor durable.
func (j *journal) storeFloor() error {
	if j.stored == j.floor {
		return nil
	}
	if err := j.state.writeJSON(j.state.file("seq-floor.json"), j.floor); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.stored = j.floor
	return nil
}

// holds reports whether the journal has the task with this very body.
func (j *journal) holds(taskID, digest string) bool {
	e, ok := j.get(taskID)
	return ok && e.Digest == digest
}

// update changes a task's entry durably.
func (j *journal) update(taskID string, change func(*entry)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.entries[taskID]
	if !ok {
		return fmt.Errorf("journal: no task %s", taskID)
	}
	change(&e)
	return j.put(e)
}

// settle is update for what is already true in the world: when the disk does
// not take it, memory still changes, and save makes it durable later.
func (j *journal) settle(taskID string, change func(*entry)) error {
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

// save makes durable what settle could not.
func (j *journal) save(taskID string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e, ok := j.entries[taskID]; ok && e.unsaved {
		return j.put(e)
	}
	return nil
}

// unreported returns the tasks whose result the server does not have, in the
// order of their sequence.
func (j *journal) unreported() []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []entry
	for _, e := range j.entries {
		if !e.Reported {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// have lists what a poll says the node already holds.
func (j *journal) have() []string {
	var ids []string
	for _, e := range j.unreported() {
		ids = append(ids, e.TaskID)
	}
	return ids
}

// prune forgets tasks that were reported and whose envelopes are void. The
// floor still refuses them.
func (j *journal) prune(now time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, e := range j.entries {
		if !e.Reported || now.Before(e.ExpiresAt.Add(keepAfterExpiry)) {
			continue
		}
		if err := j.storeFloor(); err != nil {
			return err
		}
		if err := j.state.disk.system().Remove(j.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(j.entries, id)
	}
	return nil
}
