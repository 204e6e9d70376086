package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// TestBlockersOfADrain: a drain parks with the reason that decides what an operator can do.
// More time helps if workloads or GPU processes may end, and not if the agent cannot list
// them.
func TestBlockersOfADrain(t *testing.T) {
	t.Parallel()
	job := task.Blocker{Workload: "job-1", Kind: "docker", Reason: "ignores SIGTERM"}
	training := task.Blocker{Workload: "pid 4711 python3", Kind: task.KindGPUProcess, Reason: "no workload driver stops it"}
	unknown := task.Blocker{Workload: "no workload driver is configured", Kind: task.KindUnknown, Reason: "what runs on the node is unknown"}
	server := task.Blocker{Workload: "the only control plane node of its cluster", Kind: task.KindLastServer, Reason: "the drain is refused"}
	for name, c := range map[string]struct {
		blocked []task.Blocker
		reason  string
		extend  bool
		names   []string
	}{
		"workload":      {[]task.Blocker{job}, lifecycle.ReasonDrainBlocked, true, []string{"job-1"}},
		"old agent":     {[]task.Blocker{{Workload: "job-1", Reason: "x"}}, lifecycle.ReasonDrainBlocked, true, []string{"job-1"}},
		"GPU processes": {[]task.Blocker{training}, lifecycle.ReasonGPUsInUse, true, []string{"pid 4711 python3"}},
		"no driver":     {[]task.Blocker{unknown}, lifecycle.ReasonWorkloadsUnknown, false, []string{"no workload driver"}},
		"last server":   {[]task.Blocker{server, training, job}, lifecycle.ReasonLastServer, false, []string{"the only control plane"}},
		"all":           {[]task.Blocker{job, training, unknown}, lifecycle.ReasonWorkloadsUnknown, false, []string{"job-1", "pid 4711 python3", "no workload driver"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.on[task.WorkloadDrain] = func(spec activities.TaskSpec) (task.Result, error) {
				var p task.DrainParams
				if err := (task.Result{Output: spec.Params}).Decode(&p); err != nil || !p.Force {
					return succeeded(task.DrainResult{Blocked: c.blocked}), err
				}
				return succeeded(task.DrainResult{Ignored: c.blocked}), nil
			}
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.RegisterDelayedCallback(func() {
				stuck := b.status().Operation.Stuck
				require.NotNil(t, stuck)
				require.Equal(t, c.reason, stuck.Reason)
				require.Equal(t, lifecycle.AttentionOperator, stuck.WaitingOn)
				for _, n := range c.names {
					require.Contains(t, stuck.Message, n)
				}
				decisions := map[lifecycle.Decision]lifecycle.Harm{}
				for _, o := range stuck.Options {
					decisions[o.Decision] = o.Harm
				}
				_, extend := decisions[lifecycle.DecisionExtend]
				require.Equal(t, c.extend, extend)
				require.Equal(t, lifecycle.HarmNone, stuck.Options[0].Harm)
				require.Equal(t, lifecycle.HarmWork, decisions[lifecycle.DecisionForce])
				b.decide(lifecycle.DecisionForce, "the owner agreed")
			}, time.Hour)
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Equal(t, lifecycle.NodeDrained, w.finished.Node)
			require.Equal(t, lifecycle.PhaseForced, st.Operation.Phases[1].State)
			require.Len(t, w.decisions, 1, "the force is recorded")
		})
	}
}

// TestCauseOfABusyNode: the likely cause says what to correct.
func TestCauseOfABusyNode(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string][]string{
		lifecycle.ReasonLastServer:       {"the cluster would lose its last control plane", "add a second server", "cancel and terminate the node"},
		lifecycle.ReasonWorkloadsUnknown: {"GPUAAS_WORKLOAD_DRIVER", "Docker, systemd or the Kubernetes API server does not respond", "nvidia-smi"},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			s := parkOf(t, lifecycle.ActionDrain, "task workload.drain", schema.NewError(schema.KindNodeInUse, "busy").WithReason(reason))
			require.Equal(t, reason, s.Reason)
			require.Equal(t, lifecycle.AttentionOperator, s.WaitingOn)
			for _, text := range want {
				require.Contains(t, s.Cause, text)
			}
		})
	}
}

// TestRetireChecksWorkloads: the agent's list after the cordon decides, and not the last
// heartbeat. A retire of a node that is busy or silent parks.
func TestRetireChecksWorkloads(t *testing.T) {
	t.Parallel()
	list := func(workloads ...task.Workload) func(activities.TaskSpec) (task.Result, error) {
		return func(activities.TaskSpec) (task.Result, error) {
			return succeeded(task.CordonResult{Cordoned: true, Workloads: workloads}), nil
		}
	}
	train := task.Workload{Name: "train-1", Kind: "docker"}
	for name, c := range map[string]struct {
		workload task.Workload
		reason   string
	}{
		"workload":    {train, string(schema.KindNodeInUse)},
		"GPU process": {task.Workload{Name: "pid 7 python3", Kind: task.KindGPUProcess}, lifecycle.ReasonGPUsInUse},
		"last server": {task.Workload{Name: "the only control plane node", Kind: task.KindLastServer}, lifecycle.ReasonLastServer},
		"unknown":     {task.Workload{Name: "no workload driver", Kind: task.KindUnknown}, lifecycle.ReasonWorkloadsUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.on[task.WorkloadCordon] = list(c.workload)
			b := setup(t, lifecycle.ActionRetire, w)
			b.env.RegisterDelayedCallback(func() {
				stuck := b.status().Operation.Stuck
				require.NotNil(t, stuck)
				require.Equal(t, lifecycle.PhaseIdle, stuck.Phase)
				require.Equal(t, c.reason, stuck.Reason)
				require.Contains(t, stuck.Message, c.workload.Name)
				w.mu.Lock()
				w.on[task.WorkloadCordon] = list()
				w.mu.Unlock()
				b.decide(lifecycle.DecisionRetry, "it ended")
			}, time.Hour)
			st := b.run()
			require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
			require.Equal(t, "retired", st.Operation.Outcome)
			require.Equal(t, lifecycle.NodeRetired, w.finished.Node)
		})
	}

	t.Run("canceled", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.on[task.WorkloadCordon] = list(train)
		b := setup(t, lifecycle.ActionRetire, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		st := b.run()
		require.Equal(t, lifecycle.OperationCanceled, st.Operation.Status)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		require.Contains(t, w.story(), "task workload.uncordon", "the cancel removes the cordon")
	})

	t.Run("silent and skipped", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeOffline)
		w.silent[task.WorkloadCordon] = true
		b := setup(t, lifecycle.ActionRetire, w)
		b.env.RegisterDelayedCallback(func() {
			require.Equal(t, string(schema.KindAgentSilent), b.status().Operation.Stuck.Reason)
			b.decide(lifecycle.DecisionSkip, "the machine is gone")
		}, time.Hour)
		st := b.run()
		require.Equal(t, lifecycle.NodeRetired, w.finished.Node)
		require.Equal(t, "retired; its workloads were not checked", st.Operation.Outcome)
	})

	t.Run("forced", func(t *testing.T) {
		t.Parallel()
		w := newWorld(lifecycle.NodeActive)
		w.on[task.WorkloadCordon] = list(train)
		b := setup(t, lifecycle.ActionRetire, w)
		b.in.Options.Force = true
		st := b.run()
		require.Equal(t, lifecycle.OperationCompleted, st.Operation.Status)
		require.Contains(t, w.story(), "task workload.cordon")
	})
}
