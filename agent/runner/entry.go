package runner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	// Reported is true once nothing is owed to the server: it has the result or has
	// rejected it, or the lease was lost before the task began. It is marked by a
	// .reported file next to the entry.
	Reported bool `json:"-"`

	// unsaved is true while the file does not hold the entry's latest change.
	unsaved bool
}

// leftUnbegun reports whether the task's lease was lost before the task began.
func (e Entry) leftUnbegun() bool { return e.Reported && e.Step == stepAccepted }

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

// verify checks the payload, and a finished entry's result against its digest.
func (e Entry) verify() error {
	if _, err := e.Task(); err != nil || e.Step != stepFinished {
		return err
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

// Entries reads the journal in a state folder, in the order of the sequence. damaged
// has the files that cannot be used, with the reasons.
func Entries(s disk.StateDir) (list []Entry, damaged map[string]error, err error) {
	files, err := filepath.Glob(s.File("journal", "*.json"))
	if err != nil {
		return nil, nil, err
	}
	damaged = map[string]error{}
	for _, file := range files {
		var e Entry
		there, err := s.ReadJSON(file, &e)
		if err == nil && !there {
			continue // a running agent pruned it
		}
		if err == nil && file != entryFile(s, e) {
			err = fmt.Errorf("%s names task %q", file, e.TaskID)
		}
		if err == nil {
			err = e.verify()
		}
		if err != nil {
			damaged[file] = err
			continue
		}
		_, err = s.ReadFile(reportedFile(s, e.TaskID))
		e.Reported = err == nil
		list = append(list, e)
	}
	slices.SortFunc(list, bySeq)
	return list, damaged, nil
}

func bySeq(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) }

// entryFile has the sequence in its name, so that a damaged entry raises the floor too.
func entryFile(s disk.StateDir, e Entry) string {
	return s.File("journal", fmt.Sprintf("%d-%s.json", e.Seq, e.TaskID))
}

// setAsideIDs returns the IDs of the tasks whose damaged entries were set aside.
func setAsideIDs(s disk.StateDir) (map[string]bool, error) {
	files, err := filepath.Glob(s.File("journal", "*.json.bad"))
	ids := map[string]bool{}
	for _, file := range files {
		_, id, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json.bad"), "-")
		ids[id] = true
	}
	return ids, err
}

// seqOf returns the sequence in the name of an entry's file, 0 for another file.
func seqOf(file string) int64 {
	seq, id, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "-")
	n, err := strconv.ParseInt(seq, 10, 64)
	if err != nil || !schema.IsID(id) {
		return 0
	}
	return n
}

// reportedFile exists while Entry.Reported is true.
func reportedFile(s disk.StateDir, taskID string) string {
	return s.File("journal", taskID+".reported")
}
