package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/runner"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// lives is how many lives TestKillAtEachStep runs, all kinds together.
const lives = 1000

// maxBoots bounds the processes of one life. Only the first few are killed.
const (
	maxBoots   = 40
	maxKilled  = 5
	stepsABoot = 30
)

// lifeKind is an effect class, with what must hold at the end of each life.
type lifeKind struct {
	typ    task.Type
	params any
	// execs are the executors of one process; nil for the built-in ones.
	execs func(*taskServer, *killable) map[task.Type]runner.Executor
	holds func(t *testing.T, d *taskServer, c Config, seed uint64)
}

func lifeKinds() map[string]lifeKind {
	return map[string]lifeKind{
		"read":        {typ: task.FactsCollect, execs: twoEffects, holds: completed},
		"idempotent":  {typ: task.WorkloadCordon, execs: twoEffects, holds: completed},
		"destructive": {typ: task.WorkloadDrain, params: struct{}{}, execs: twoEffects, holds: atMostOnce},
		"drain":       {typ: task.WorkloadDrain, holds: oneSignalEach},
		"wipe":        {typ: task.WipeIdentity, holds: wiped},
	}
}

// twoEffects is an executor with two effects and a durable record between them.
func twoEffects(d *taskServer, m *killable) map[task.Type]runner.Executor {
	run := func(_ context.Context, t runner.Task) (any, error) {
		for _, what := range []string{"first", "second"} {
			if err := d.did(m, what); err != nil {
				return nil, err
			}
			if err := t.Remember(what); err != nil {
				return nil, err
			}
		}
		return "done", nil
	}
	x := runner.Executor{Check: func(json.RawMessage) error { return nil }, Run: run, Folder: true}
	return map[task.Type]runner.Executor{d.task.Type: x}
}

func completed(t *testing.T, d *taskServer, _ Config, seed uint64) {
	t.Helper()
	require.Equal(t, task.Succeeded, d.result.Status, "seed %d: %s", seed, d.result.Message)
	require.Positive(t, d.effects["first"], "seed %d", seed)
	require.Positive(t, d.effects["second"], "seed %d", seed)
}

func atMostOnce(t *testing.T, d *taskServer, _ Config, seed uint64) {
	t.Helper()
	require.LessOrEqual(t, d.effects["first"], 1, "seed %d", seed)
	require.LessOrEqual(t, d.effects["second"], d.effects["first"], "seed %d", seed)
	if d.result.Status == task.Succeeded {
		require.Equal(t, 1, d.effects["second"], "seed %d", seed)
		return
	}
	require.Equal(t, task.Failed, d.result.Status, "seed %d", seed)
	require.Contains(t, d.result.Message, "outcome unknown", "seed %d", seed)
}

// oneSignalEach: the drain continues after each kill and signals no workload twice.
// A workload whose signal a kill prevented is reported as blocked.
func oneSignalEach(t *testing.T, d *taskServer, _ Config, seed uint64) {
	t.Helper()
	require.Equal(t, task.Succeeded, d.result.Status, "seed %d: %s", seed, d.result.Message)
	r := decode[task.DrainResult](t, d.result.Output)
	require.Len(t, r.Stopped, len(drainedJobs())-len(r.Blocked), "seed %d", seed)
	for _, name := range drainedJobs() {
		require.LessOrEqual(t, d.effects[name], 1, "seed %d", seed)
	}
	for _, name := range r.Stopped {
		require.Equal(t, 1, d.effects[name], "seed %d", seed)
	}
}

// wiped: the keys are gone, and they were there until the server had the result.
func wiped(t *testing.T, d *taskServer, c Config, seed uint64) {
	t.Helper()
	require.Equal(t, task.Succeeded, d.result.Status, "seed %d: %s", seed, d.result.Message)
	require.NoFileExists(t, c.KeyPath, "seed %d", seed)
	require.NoFileExists(t, c.CertPath, "seed %d", seed)
	require.NoFileExists(t, versionPath(c, 1), "seed %d", seed)
	require.FileExists(t, filepath.Join(c.StateDir, "removed.json"), "seed %d", seed)
}

func drainedJobs() []string { return []string{"a", "b", "c"} }

// ledgerWorkloads is a driver whose workloads end at their first signal. As the
// drivers of a node do, it stores the request before it sends the signal.
type ledgerWorkloads struct {
	d     *taskServer
	m     *killable
	state disk.StateDir
}

func (w ledgerWorkloads) asked() map[string]bool {
	asked := map[string]bool{}
	_, _ = w.state.ReadJSON(w.state.File("asked.json"), &asked)
	return asked
}

func (w ledgerWorkloads) List(context.Context) ([]task.Workload, error) {
	asked, list := w.asked(), []task.Workload{}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	for _, name := range drainedJobs() {
		if w.d.effects[name] == 0 {
			list = append(list, task.Workload{Name: name, Kind: devworkload.Name, Stopping: asked[name]})
		}
	}
	return list, nil
}

func (w ledgerWorkloads) Stop(_ context.Context, name string) error {
	asked := w.asked()
	if asked[name] {
		return nil
	}
	asked[name] = true
	if err := w.state.WriteJSON(w.state.File("asked.json"), asked); err != nil {
		return err
	}
	return w.d.did(w.m, name)
}

func (w ledgerWorkloads) Kill(context.Context, string) error { return nil }

func (w ledgerWorkloads) Run(ctx context.Context) { <-ctx.Done() }

// TestKillAtEachStep kills an agent before or after each of its steps,
// disk, network and effect, with lost and doubled requests, again and again over
// what it left: reads and idempotent tasks complete, destructive effects happen
// at most once, no result is lost and none changes.
func TestKillAtEachStep(t *testing.T) {
	t.Parallel()
	stride := uint64(1)
	if testing.Short() {
		stride = 13
	}
	kinds := lifeKinds()
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // a drain's waits take no time
				f := agenttest.NewQuiet(t)
				steps := live(t, f, kind, 0, 0)
				for seed := uint64(0); seed < lives/uint64(len(kinds)); seed += stride {
					live(t, f, kind, seed, steps)
				}
			})
		})
	}
}

// live runs one life: processes, of which the first few are killed, until the
// task is over. The first kill goes through all the steps, seed by seed, before
// and after; from there on the network has faults too. With no steps nothing is
// killed; it returns how many the first process took.
func live(t *testing.T, f *agenttest.API, kind lifeKind, seed uint64, steps int) (taken int) {
	t.Helper()
	draws := rand.New(rand.NewPCG(seed, 7))
	dir := memoryFolder(t)
	c := configIn(f, dir)
	c.WorkloadDriver = inventory.DriverNone
	install(f, c, f.ID, time.Now().Add(time.Hour))
	params := kind.params
	if kind.typ == task.WorkloadDrain && params == nil {
		params = task.DrainParams{Deadline: time.Now().Add(200 * time.Millisecond)}
	}
	d := &taskServer{f: f, task: f.Payload(kind.typ, 1, params), effects: map[string]int{}}
	if steps > 0 && int(seed) >= 2*steps {
		d.draws = draws
	}
	log := &agenttest.LogBuffer{}
	removed := false
	for boot := 0; !removed && (!d.over() || kind.typ == task.WipeIdentity); boot++ {
		require.Less(t, boot, maxBoots, "seed %d: the task is never over\n%s", seed, log)
		m := &killable{}
		switch {
		case steps == 0:
		case boot == 0:
			m.at, m.after = 1+int(seed)%steps, int(seed)/steps%2 == 1
		case boot < maxKilled:
			m.at, m.after = 1+draws.IntN(steps), draws.IntN(2) == 1
		}
		removed = oneProcess(t, d, m, c, kind, log)
		if boot == 0 {
			taken = m.n
		}
		if !d.over() {
			require.FileExists(t, versionPath(c, 1), "seed %d: the key is gone before the result is known\n%s", seed, log)
		}
	}
	require.Empty(t, d.faults, "seed %d\n%s", seed, log)
	require.Equal(t, schema.SHA256Hex(f.Body(d.task)), d.result.EnvelopeSHA256, "seed %d", seed)
	kind.holds(t, d, c, seed)
	require.NoDirExists(t, filepath.Join(c.StateDir, "work", d.task.TaskID), "seed %d", seed)
	require.NoError(t, os.RemoveAll(dir))
	return taken
}

// oneProcess is one process of a life, to its kill or to the end of the task. It
// reports whether the agent was removed.
func oneProcess(t *testing.T, d *taskServer, m *killable, c Config, kind lifeKind, log *agenttest.LogBuffer) (removed bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m.kill = cancel
	fmt.Fprintf(log, "-- a process that dies at step %d, after it: %t\n", m.at, m.after)
	deps := Deps{
		FS: killableDisk{m: m}, Transport: d.transport(m), PollTimeout: time.Millisecond, Log: slog.New(slog.NewJSONHandler(log, nil)),
		Workloads: ledgerWorkloads{d, m, disk.StateDir{Path: c.StateDir, FS: killableDisk{m: m}}},
	}
	if kind.execs != nil {
		deps.Executors = kind.execs(d, m)
	}
	deps.timing = slowProgress()
	a, err := New(c, deps)
	if err != nil {
		require.True(t, m.isKilled(), "%v\n%s", err, log)
		return false
	}
	defer a.Close()
	// One thing at a time, so that a seed always gives the same life: the
	// tasks of a previous process finish before the first poll.
	if a.ReconcileIdentity(ctx).Ready {
		a.resume(ctx)
		a.Wait()
	}
	for range stepsABoot {
		out, _ := a.RunOnce(ctx)
		a.Wait()
		if m.isKilled() {
			return false
		}
		if out.Removed || d.over() && kind.typ != task.WipeIdentity {
			return out.Removed
		}
	}
	return false
}
