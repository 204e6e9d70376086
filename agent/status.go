package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/verify"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Status is what `gpuaas-node-agent status` shows: the state folder's content,
// read without any network.
type Status struct {
	NodeID  string `json:"node_id"`
	Env     string `json:"env"`
	Version string `json:"version"`
	identity.Status

	// VerifierSet is the set that verifies tasks; null before the first start.
	VerifierSet *verify.Status `json:"verifier_set"`

	LastPoll  *PollStatus     `json:"last_poll"`
	Cordoned  bool            `json:"cordoned"`
	Workloads []task.Workload `json:"workloads"`
	Tasks     []TaskStatus    `json:"tasks"`
}

// PollStatus is the outcome of the running agent's last poll.
type PollStatus struct {
	At      time.Time `json:"at"`
	OK      bool      `json:"ok"`
	Error   string    `json:"error,omitempty"`
	PID     int       `json:"pid"`
	Version string    `json:"version"`
}

// TaskStatus is one journal entry.
type TaskStatus struct {
	TaskID     string      `json:"task_id"`
	Type       task.Type   `json:"type"`
	Seq        int64       `json:"seq"`
	Step       string      `json:"step"`
	Reported   bool        `json:"reported"`
	Status     task.Status `json:"status,omitempty"`
	AcceptedAt time.Time   `json:"accepted_at"`
}

// ReadStatus reads the state folder of an agent that may be running.
func ReadStatus(ctx context.Context, c Config) (Status, error) {
	state := disk.At(c.StateDir)
	s := Status{NodeID: c.NodeID, Env: c.Env, Version: Version(), Workloads: []task.Workload{}, Tasks: []TaskStatus{}}
	var err error
	clock := nodeapi.NewClock(time.Now, slog.New(slog.DiscardHandler))
	if s.Status, err = identity.ReadStatus(c.identity(), state, clock); err != nil {
		return s, err
	}
	var last PollStatus
	if ok, err := state.ReadJSON(state.File("poll.json"), &last); err != nil {
		return s, err
	} else if ok {
		s.LastPoll = &last
	}
	s.VerifierSet = verify.ReadStatus(c.Env, state)
	flags, err := workload.LoadCordon(state, func() {})
	if err != nil {
		return s, err
	}
	s.Cordoned = flags.Cordoned()
	w, err := c.newDriver(workload.Config{
		State: state, Cordoned: flags.Cordoned, Changed: func() {}, ReadOnly: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return s, err
	}
	if s.Workloads, err = w.List(ctx); err != nil {
		return s, err
	}
	s.Tasks, err = readTasks(state)
	return s, err
}

// readTasks lists the journal, oldest first.
func readTasks(state disk.StateDir) ([]TaskStatus, error) {
	files, err := filepath.Glob(state.File("journal", "*.json"))
	if err != nil {
		return nil, err
	}
	list := []TaskStatus{}
	for _, f := range files {
		var e runner.Entry
		if ok, err := state.ReadJSON(f, &e); err != nil || !ok {
			continue // the agent pruned it, or will put it aside
		}
		t := TaskStatus{TaskID: e.TaskID, Seq: e.Seq, Step: e.Step, Reported: e.Reported, AcceptedAt: e.AcceptedAt}
		if p, err := e.Task(); err == nil {
			t.Type = p.Type
		}
		if e.Result != nil {
			t.Status = e.Result.Status
		}
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b TaskStatus) int { return cmp.Compare(a.Seq, b.Seq) })
	return list, nil
}

func (s Status) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(k string, v any) { fmt.Fprintf(t, "%s\t%v\n", k, v) }
	row("node", s.NodeID)
	row("environment", s.Env)
	if s.Identity != nil {
		row("identity", s.Identity.URI)
		row("serial", s.Identity.Serial)
		row("issuer", s.Identity.Issuer)
		row("expires", text.FormatTime(s.Identity.NotAfter))
		row("sequence", s.Sequence)
		row("recovery possible", s.RecoveryPossible)
	}
	if !s.LastRenewal.IsZero() {
		row("last renewal", text.FormatTime(s.LastRenewal))
	}
	if !s.NextRenewal.IsZero() {
		row("next renewal", text.FormatTime(s.NextRenewal))
	}
	for _, v := range s.Versions {
		row("version", fmt.Sprintf("%d sequence=%d incarnation=%d via=%s serial=%s expires=%s in_use=%t", v.Version, v.Sequence,
			v.Incarnation, v.Via, v.Certificate.Serial, text.FormatTime(v.Certificate.NotAfter), v.InUse))
	}
	if s.Manager != nil {
		row("identity state", s.Manager.State)
		if s.Manager.Trouble != "" {
			row("identity trouble", s.Manager.Trouble)
		}
	}
	if s.Removed {
		row("removed", true)
	}
	if s.IdentityFault != "" {
		row("identity fault", s.IdentityFault)
	}
	if s.IssuerFault != "" {
		row("issuer fault", s.IssuerFault)
	}
	switch p := s.LastPoll; {
	case p == nil:
		row("last poll", "never")
	case p.OK:
		row("last poll", text.FormatTime(p.At)+" ok")
	default:
		row("last poll", text.FormatTime(p.At)+" "+p.Error)
	}
	if v := s.VerifierSet; v != nil {
		row("verifier set", fmt.Sprintf("%d of epoch %d, expires %s", v.Version, v.Epoch, text.FormatTime(v.ExpiresAt)))
	}
	row("cordoned", s.Cordoned)
	for _, wl := range s.Workloads {
		row("workload", fmt.Sprintf("%s %s since %s stopping=%t", wl.Kind, wl.Name, text.FormatTime(wl.Since), wl.Stopping))
	}
	for _, task := range s.Tasks {
		row("task", fmt.Sprintf("%s %s %s %s reported=%t", task.TaskID, task.Type, task.Step, task.Status, task.Reported))
	}
	return t.Flush()
}
