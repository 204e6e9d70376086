package repair

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/execution"
	"github.com/gpuaas/gpuaas/agent/internal/nvidia"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Limits of a reset.
const (
	maxGPUs        = 256
	queryTimeout   = 20 * time.Second
	resetTimeout   = 90 * time.Second
	restoreTimeout = 60 * time.Second
	// resetTries bounds the resets that fail because a client has the GPU open: the queries of
	// monitoring are short.
	resetTries = 3
	maxNamed   = 8 // processes in an error
)

// clients are the services that keep GPUs open, in the order in which they are stopped.
func clients() []string {
	return []string{"dcgm-exporter.service", "nvidia-dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service", "nvidia-persistenced.service"}
}

// Units starts and stops services.
type Units interface {
	Active(ctx context.Context, name string) (bool, error)
	Stop(ctx context.Context, name string) error
	Start(ctx context.Context, name string) error
}

// Reset runs gpu.reset.
type Reset struct {
	// SMI is the path of nvidia-smi, "" to look it up in PATH.
	SMI     string
	Outside Outside
	// Units is nil on a machine without systemd.
	Units Units
	// State has the record of what a reset stopped.
	State disk.StateDir
	// Done is called with the GPUs that were reset.
	Done func(uuids []string)
	// Pause is the time between two tries. Defaults to 5 s.
	Pause time.Duration
}

// opened is what a reset changed before it resets. The record of it lasts until that is restored, also
// if the agent crashes and the task is canceled meanwhile.
type opened struct {
	Stopped    []string `json:"stopped,omitempty"`    // services, in the order in which they stopped
	Persistent []string `json:"persistent,omitempty"` // UUIDs of GPUs with persistence mode
}

// gpu is one GPU of the machine.
type gpu struct {
	uuid       string
	persistent bool
}

// Check refuses params that are not those of a reset.
func (Reset) Check(params json.RawMessage) error {
	_, err := resetParams(params)
	return err
}

func resetParams(params json.RawMessage) (p task.ResetParams, err error) {
	if s := strings.TrimSpace(string(params)); s == "" || s == "null" {
		return p, nil
	}
	if err := schema.DecodeStrict(params, wire.MaxBodyBytes, &p); err != nil {
		return p, err
	}
	uuid := regexp.MustCompile(`^GPU-[0-9a-f-]{1,60}$`)
	for i, id := range p.GPUs {
		if !uuid.MatchString(id) || slices.Contains(p.GPUs[:i], id) {
			return p, schema.NewError(schema.KindInvalidRequest, "gpus must be different UUIDs of GPUs")
		}
	}
	return p, nil
}

// Run resets the GPUs: it stops the services that keep them open, resets them, and restores the
// services, whatever happens. It changes nothing if processes use the GPUs. A run that a crash
// interrupted starts again; another reset of an idle GPU does no harm.
func (r Reset) Run(ctx context.Context, t execution.Task) (_ any, err error) {
	p, err := resetParams(t.Params)
	if err != nil {
		return nil, err
	}
	programs := command.Runner{Dir: t.Dir, Output: t.Output}
	path, err := exec.LookPath(cmp.Or(r.SMI, nvidia.Default))
	if err != nil {
		return nil, failed(ReasonNoGPU, "the node has no nvidia-smi: %v", err)
	}
	was, err := r.record()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.restore(ctx, programs, path, was)) }()
	targets, err := r.targets(ctx, programs, p.GPUs)
	if err != nil {
		return nil, err
	}
	if err := r.idle(ctx, programs, targets); err != nil {
		return nil, err
	}
	if err := t.Confirm(ctx, task.LeaseDuration); err != nil {
		return nil, err
	}
	t.Note("stopping the clients of the GPUs")
	if err := r.open(ctx, programs, path, targets, &was); err != nil {
		return nil, err
	}
	if err := r.idle(ctx, programs, targets); err != nil {
		return nil, err
	}
	t.Note("resetting the GPUs")
	uuids := make([]string, 0, len(targets))
	for _, g := range targets {
		uuids = append(uuids, g.uuid)
	}
	if err := r.reset(ctx, programs, path, p.GPUs); err != nil {
		return nil, err
	}
	r.Done(uuids)
	return task.ResetResult{Reset: uuids}, nil
}

// query asks nvidia-smi for columns and returns its rows.
func (r Reset) query(ctx context.Context, programs command.Runner, columns string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	out, _, err := nvidia.Query(ctx, programs, r.SMI, columns)
	if err != nil {
		return nil, failed(ReasonReset, "%v", err)
	}
	c := csv.NewReader(strings.NewReader(out))
	c.FieldsPerRecord, c.TrimLeadingSpace, c.LazyQuotes = strings.Count(columns, ",")+1, true, true
	rows, err := c.ReadAll()
	if err != nil {
		return nil, failed(ReasonReset, "unexpected output of nvidia-smi: %v", err)
	}
	return rows, nil
}

// targets returns the GPUs to reset: the named ones, or all.
func (r Reset) targets(ctx context.Context, programs command.Runner, names []string) (list []gpu, err error) {
	rows, err := r.query(ctx, programs, "--query-gpu=uuid,persistence_mode")
	if err != nil {
		return nil, err
	}
	for _, row := range rows[:min(len(rows), maxGPUs)] {
		if len(names) == 0 || slices.Contains(names, row[0]) {
			list = append(list, gpu{uuid: row[0], persistent: row[1] == "Enabled"})
		}
	}
	if len(list) == 0 || len(list) < len(names) {
		return nil, failed(ReasonNoGPU, "the node has %d of the %d GPUs to reset", len(list), len(names))
	}
	return list, nil
}

// idle fails if processes use the GPUs.
func (r Reset) idle(ctx context.Context, programs command.Runner, targets []gpu) error {
	rows, err := r.query(ctx, programs, "--query-compute-apps=gpu_uuid,pid,process_name")
	if err != nil {
		return err
	}
	var users []string
	for _, row := range rows {
		if slices.ContainsFunc(targets, func(g gpu) bool { return g.uuid == row[0] }) {
			users = append(users, text.Printable(fmt.Sprintf("pid %s %s on %s", row[1], row[2], row[0]), 160))
		}
	}
	if len(users) > 0 {
		more := ""
		if len(users) > maxNamed {
			more = fmt.Sprintf(" and %d more", len(users)-maxNamed)
		}
		return failed(ReasonInUse, "%s%s: drain the node first", strings.Join(users[:min(len(users), maxNamed)], ", "), more)
	}
	return nil
}

// open stops what keeps the GPUs open. It records each change before it makes it.
func (r Reset) open(ctx context.Context, programs command.Runner, path string, targets []gpu, was *opened) error {
	for _, name := range clients() {
		if r.Units == nil {
			break
		}
		active, err := r.Units.Active(ctx, name)
		if err != nil {
			return failed(ReasonReset, "%v", err)
		}
		if active && !slices.Contains(was.Stopped, name) {
			was.Stopped = append(was.Stopped, name)
		}
	}
	for _, g := range targets {
		if g.persistent && !slices.Contains(was.Persistent, g.uuid) {
			was.Persistent = append(was.Persistent, g.uuid)
		}
	}
	if err := r.State.WriteJSON(r.recordFile(), *was); err != nil {
		return err
	}
	for _, name := range was.Stopped {
		if err := r.Units.Stop(ctx, name); err != nil {
			return failed(ReasonReset, "%v", err)
		}
	}
	return r.persistence(ctx, programs, path, was.Persistent, "0")
}

// persistence sets the persistence mode of GPUs.
func (r Reset) persistence(ctx context.Context, programs command.Runner, path string, uuids []string, mode string) error {
	if len(uuids) == 0 {
		return nil
	}
	out, stderr, err := r.Outside.run(ctx, programs, queryTimeout, path, "-pm", mode, "-i", strings.Join(uuids, ","))
	if err != nil {
		return failed(ReasonReset, "nvidia-smi -pm %s: %v: %s", mode, err, tail(out+stderr))
	}
	return nil
}

// reset resets the named GPUs, or all.
func (r Reset) reset(ctx context.Context, programs command.Runner, path string, names []string) error {
	args := []string{"--gpu-reset"}
	if len(names) > 0 {
		args = append(args, "-i", strings.Join(names, ","))
	}
	for try := 1; ; try++ {
		out, stderr, err := r.Outside.run(ctx, programs, resetTimeout, path, args...)
		said := tail(out + stderr)
		switch {
		case err == nil:
			return nil
		case try == resetTries || !strings.Contains(out+stderr, "in use by"):
			return failed(ReasonReset, "nvidia-smi --gpu-reset: %v: %s", err, said)
		}
		if err := wait.Sleep(ctx, cmp.Or(r.Pause, 5*time.Second)); err != nil {
			return err
		}
	}
}

func (r Reset) recordFile() string { return r.State.File("gpu-reset.json") }

// record returns what an interrupted reset stopped.
func (r Reset) record() (was opened, err error) {
	_, err = r.State.ReadJSON(r.recordFile(), &was)
	return was, err
}

// Recover restores what a reset stopped that a crash of the agent interrupted. It must not run
// concurrently with Run.
func (r Reset) Recover(ctx context.Context) error {
	was, err := r.record()
	if err != nil || len(was.Stopped)+len(was.Persistent) == 0 {
		return err
	}
	path, err := exec.LookPath(cmp.Or(r.SMI, nvidia.Default))
	if err != nil {
		return err
	}
	return r.restore(ctx, command.Runner{}, path, was)
}

// restore starts what open stopped, also after the task was canceled.
func (r Reset) restore(ctx context.Context, programs command.Runner, path string, was opened) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreTimeout)
	defer cancel()
	err = r.persistence(ctx, programs, path, was.Persistent, "1")
	for _, name := range slices.Backward(was.Stopped) {
		if r.Units != nil {
			err = errors.Join(err, r.Units.Start(ctx, name))
		}
	}
	if err != nil {
		return failed(ReasonReset, "the GPUs' services are not restored: %v", err)
	}
	if len(was.Stopped)+len(was.Persistent) == 0 {
		return nil
	}
	return r.State.WriteJSON(r.recordFile(), opened{})
}

// tail is the end of a program's output for an error.
func tail(out string) string {
	out = strings.TrimSpace(out)
	return text.Printable(out[max(0, len(out)-200):], 200)
}
