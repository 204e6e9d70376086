package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
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
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
)

// Status is what `gpuaas-node-agent status` shows: the state folder's content,
// read without any network.
type Status struct {
	NodeID  string `json:"node_id"`
	Env     string `json:"env"`
	Version string `json:"version"`
	identity.Status

	// ServerCAs are the certificates of GPUAAS_CA_BUNDLE_PATH, NodeCAs those of
	// GPUAAS_NODE_CERT_CA_BUNDLE_PATH. A file that cannot be read has none.
	ServerCAs []trust.CertFacts `json:"server_cas"`
	NodeCAs   []trust.CertFacts `json:"node_cas"`

	// VerifierSet is the set that verifies tasks; null before the first start.
	VerifierSet *verify.Status `json:"verifier_set"`

	LastPoll *PollStatus `json:"last_poll"`
	Cordoned bool        `json:"cordoned"`
	// WorkloadDriver is the configured driver, "" if there is none.
	WorkloadDriver string          `json:"workload_driver"`
	Workloads      []task.Workload `json:"workloads"`
	// WorkloadsFault is why the workloads are unknown.
	WorkloadsFault string       `json:"workloads_fault,omitempty"`
	Tasks          []TaskStatus `json:"tasks"`
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

// statusTimeout bounds the wait for the workload driver.
const statusTimeout = 10 * time.Second

// ReadStatus reads the state folder of an agent that may be running.
func ReadStatus(ctx context.Context, c Config) (Status, error) {
	state := disk.At(c.StateDir)
	s := Status{NodeID: c.NodeID, Env: c.Env, Version: version.Version(), Workloads: []task.Workload{}, Tasks: []TaskStatus{},
		ServerCAs: certFacts(c.CABundlePath), NodeCAs: certFacts(c.NodeCABundlePath)}
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
	s.WorkloadDriver = c.WorkloadDriver
	if s.Workloads, err = listWorkloads(ctx, c, state, flags.Cordoned); err != nil {
		s.WorkloadsFault = text.Truncate(err.Error())
	}
	s.Tasks, err = readTasks(state)
	return s, err
}

// listWorkloads returns the workloads of the configured driver, and the processes that use GPUs
// by nvidia-smi. Without a driver, it returns an error and those processes.
func listWorkloads(ctx context.Context, c Config, state disk.StateDir, cordoned func() bool) ([]task.Workload, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	log, none := slog.New(slog.DiscardHandler), []task.Workload{}
	gpus := workload.NewGPUs(c.NvidiaSMI, time.Now, log)
	if c.WorkloadDriver == "" {
		return append(none, gpus.Processes(ctx)...), errors.New("no workload driver is configured: set GPUAAS_WORKLOAD_DRIVER")
	}
	w, err := c.newDriver(workload.Config{State: state, Cordoned: cordoned, Changed: func() {}, ReadOnly: true, Log: log})
	if err != nil {
		return none, err
	}
	list, err := workload.NewMonitor(w, time.Now, func() {}, log).List(ctx)
	if err != nil {
		return none, err
	}
	return slices.Concat(none, list, gpus.Processes(ctx)), nil
}

// certFacts returns the facts of the certificates in a file.
func certFacts(file string) []trust.CertFacts {
	all := []trust.CertFacts{}
	raw, err := os.ReadFile(file)
	if err != nil {
		return all
	}
	certificates, err := trust.ParseCertificates(string(raw))
	if err != nil {
		return all
	}
	for _, c := range certificates {
		all = append(all, trust.CertFactsOf(c))
	}
	return all
}

// readTasks lists the journal, oldest first.
func readTasks(state disk.StateDir) ([]TaskStatus, error) {
	entries, _, err := runner.Entries(state)
	list := []TaskStatus{}
	for _, e := range entries {
		t := TaskStatus{TaskID: e.TaskID, Seq: e.Seq, Step: e.Step, Reported: e.Reported, AcceptedAt: e.AcceptedAt}
		if p, err := e.Task(); err == nil {
			t.Type = p.Type
		}
		if e.Result != nil {
			t.Status = e.Result.Status
		}
		list = append(list, t)
	}
	return list, err
}

func (s Status) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(k, format string, args ...any) { fmt.Fprintf(t, k+"\t"+format+"\n", args...) }
	set := func(k, v string) {
		if v != "" {
			row(k, "%s", v)
		}
	}
	row("node", "%s", s.NodeID)
	row("environment", "%s", s.Env)
	if id := s.Identity; id != nil {
		row("identity", "%s", id.URI)
		row("serial", "%s", id.Serial)
		set("subject", id.Subject)
		row("issuer", "%s", id.Issuer)
		row("valid from", "%s", text.FormatTime(id.NotBefore))
		row("expires", "%s", text.FormatTime(id.NotAfter))
		row("SHA-256", "%s", id.Fingerprint)
		row("sequence", "%d", s.Sequence)
		row("recovery possible", "%t", s.RecoveryPossible)
	}
	set("last renewal", timeOrNone(s.LastRenewal))
	set("next renewal", timeOrNone(s.NextRenewal))
	for _, v := range s.Versions {
		row("version", "%d sequence=%d incarnation=%d via=%s serial=%s expires=%s in_use=%t", v.Version, v.Sequence,
			v.Incarnation, v.Via, v.Certificate.Serial, text.FormatTime(v.Certificate.NotAfter), v.InUse)
	}
	if s.Manager != nil {
		row("identity state", "%s", s.Manager.State)
		set("identity trouble", s.Manager.Trouble)
	}
	for _, b := range []struct {
		name  string
		certs []trust.CertFacts
	}{{"server CA", s.ServerCAs}, {"node CA", s.NodeCAs}} {
		for _, ca := range b.certs {
			row(b.name, "%s issuer=%q expires=%s SHA-256=%s", ca.Subject, ca.Issuer, text.FormatTime(ca.NotAfter), ca.Fingerprint)
		}
	}
	if s.Removed {
		row("removed", "true")
	}
	set("identity fault", s.IdentityFault)
	set("issuer fault", s.IssuerFault)
	if p := s.LastPoll; p == nil {
		row("last poll", "never")
	} else {
		row("last poll", "%s %s", cmp.Or(timeOrNone(p.At), "unknown"), cmp.Or(p.Error, "ok"))
	}
	if v := s.VerifierSet; v != nil && v.ExpiresAt.IsZero() {
		row("verifier set", "the keys of the bundle")
	} else if v != nil {
		row("verifier set", "%d of epoch %d, expires %s", v.Version, v.Epoch, text.FormatTime(v.ExpiresAt))
	}
	row("cordoned", "%t", s.Cordoned)
	set("workload driver", s.WorkloadDriver)
	set("workloads unknown", s.WorkloadsFault)
	for _, wl := range s.Workloads {
		row("workload", "%s %s since %s stopping=%t", wl.Kind, wl.Name, cmp.Or(timeOrNone(wl.Since), "unknown"), wl.Stopping)
	}
	for _, task := range s.Tasks {
		row("task", "%s %s %s %s reported=%t", task.TaskID, task.Type, task.Step, task.Status, task.Reported)
	}
	return t.Flush()
}

func timeOrNone(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return text.FormatTime(t)
}
