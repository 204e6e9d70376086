package lifecycle_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestAbandonedOptions holds the options of every abandoned operation: the first one
// destroys nothing, they are ordered by harm, and their commands need no reason, so that
// they can be typed as printed.
func TestAbandonedOptions(t *testing.T) {
	t.Parallel()
	rank := map[lifecycle.Harm]int{lifecycle.HarmNone: 0, lifecycle.HarmWork: 1, lifecycle.HarmFinal: 2}
	for _, p := range lifecycle.Operations() {
		for _, prior := range p.From {
			for _, state := range slices.Compact([]lifecycle.NodeState{prior, enters(p, prior)}) {
				for _, end := range lifecycle.RunEnds() {
					s := p.Abandoned(lifecycle.NodeRef{Host: "gpu-17", State: state}, prior, lifecycle.Options{AgentVersion: "v1.4.0"}, end)
					require.Equal(t, string(end), s.Reason)
					require.Equal(t, lifecycle.AttentionOperator, s.WaitingOn)
					require.Contains(t, s.Message, "its workflow run ")
					require.NotContains(t, s.Message, string(end), "in words, not as a code")
					require.NotEmpty(t, s.Cause)
					require.Equal(t, "gpuaas node rehydrate gpu-17", s.Next)
					require.Equal(t, s.Next, s.Options[0].Command)
					require.Equal(t, lifecycle.HarmNone, s.Options[0].Harm)
					require.Equal(t, lifecycle.DecisionRehydrate, s.Options[0].Decision)
					for i, o := range s.Options {
						require.True(t, strings.HasPrefix(o.Command, "gpuaas node "), o.Command)
						require.NotContains(t, o.Command, lifecycle.ReasonPlaceholder)
						require.NotContains(t, lifecycle.Decisions(), o.Decision, "the resolve update does not accept it")
						require.NotEmpty(t, o.Does)
						require.True(t, i == 0 || rank[s.Options[i-1].Harm] <= rank[o.Harm], "%s", p.Action)
					}
					restart := p.Action != lifecycle.ActionQuarantine || state != lifecycle.NodeQuarantined
					require.Equal(t, restart, len(s.Options) == 2, "%s in %s", p.Action, state)
				}
			}
		}
	}
}

func enters(p lifecycle.Plan, prior lifecycle.NodeState) lifecycle.NodeState {
	if p.Enter == "" {
		return prior
	}
	return p.Enter
}

// TestNodeNext: a node without an operation that cannot take work names the command that
// changes that.
func TestNodeNext(t *testing.T) {
	t.Parallel()
	for _, s := range lifecycle.NodeStates() {
		n := lifecycle.NodeRef{Host: "gpu-17", State: s}
		free, cordoned := "", ""
		switch s {
		case lifecycle.NodeActive, lifecycle.NodeOffline:
			cordoned = "gpuaas node uncordon gpu-17"
		case lifecycle.NodeQuarantined:
			free, cordoned = "gpuaas node drain gpu-17 --cordon-only", "gpuaas node release gpu-17"
		case lifecycle.NodeRegistered, lifecycle.NodeBootstrapIssued, lifecycle.NodeEnrolling:
			free, cordoned = "gpuaas node enroll gpu-17", "gpuaas node enroll gpu-17"
			require.Contains(t, lifecycle.ActionsIn(s), lifecycle.ActionEnroll)
		}
		require.Equal(t, free, lifecycle.NodeNext(n, false, false), s)
		require.Equal(t, cordoned, lifecycle.NodeNext(n, true, false), s)
		if !s.Enrolled() {
			require.Equal(t, "gpuaas node provision gpu-17", lifecycle.NodeNext(n, false, true), s)
		}
	}
}

// TestAbandonedRepair: a node whose repair was abandoned stays quarantined, and the option that accepts that
// names the command that ends the quarantine.
func TestAbandonedRepair(t *testing.T) {
	t.Parallel()
	p, ok := lifecycle.PlanOf(lifecycle.ActionRecover, lifecycle.Options{})
	require.True(t, ok)
	s := p.Abandoned(lifecycle.NodeRef{Host: "gpu-17", State: lifecycle.NodeQuarantined}, lifecycle.NodeActive, lifecycle.Options{}, lifecycle.RunTerminated)
	require.Equal(t, "Record the operation as failed; the node stays quarantined until gpuaas node release gpu-17", s.Options[0].Does)
	require.Equal(t, "gpuaas node rehydrate gpu-17", s.Next)
}

func TestAbandonedText(t *testing.T) {
	t.Parallel()
	abandoned := func(a lifecycle.Action, o lifecycle.Options, state, prior lifecycle.NodeState) lifecycle.Stuck {
		p, _ := lifecycle.PlanOf(a, o)
		return p.Abandoned(lifecycle.NodeRef{Host: "gpu-17", State: state}, prior, o, lifecycle.RunTerminated)
	}
	drain := abandoned(lifecycle.ActionDrain, lifecycle.Options{}, lifecycle.NodeDraining, lifecycle.NodeOffline)
	require.Equal(t, "the operation does not continue: its workflow run was terminated in Temporal", drain.Message)
	require.Contains(t, drain.Options[0].Does, "restore the node's state, offline")
	require.Contains(t, drain.Options[0].Does, "gpuaas node uncordon")
	terminate := abandoned(lifecycle.ActionTerminate, lifecycle.Options{}, lifecycle.NodeTerminating, lifecycle.NodeOffline)
	require.Equal(t, "Record the operation as failed and restore the node's state, offline; if the machine is gone, run gpuaas node terminate again", terminate.Options[0].Does)
	retire := abandoned(lifecycle.ActionRetire, lifecycle.Options{}, lifecycle.NodeActive, lifecycle.NodeActive)
	require.Contains(t, retire.Options[0].Does, "the node stays active")
	reissue := abandoned(lifecycle.ActionReissueEnrollment, lifecycle.Options{}, lifecycle.NodeDraining, lifecycle.NodeActive)
	require.Contains(t, reissue.Options[0].Does, "the node stays draining", "a reissue does not hold the node")
	require.Len(t, reissue.Options, 1, "nor can it start now")

	for command, s := range map[string]lifecycle.Stuck{
		"gpuaas node drain gpu-17":                          drain,
		"gpuaas node drain gpu-17 --deadline 1h30m0s":       abandoned(lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 5400}, lifecycle.NodeDraining, lifecycle.NodeActive),
		"gpuaas node drain gpu-17 --cordon-only":            abandoned(lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true}, lifecycle.NodeDraining, lifecycle.NodeActive),
		"gpuaas node retire gpu-17":                         retire,
		"gpuaas node retire gpu-17 --drain":                 abandoned(lifecycle.ActionRetire, lifecycle.Options{Drain: true}, lifecycle.NodeActive, lifecycle.NodeActive),
		"gpuaas node retire gpu-17 --drain --deadline 1m0s": abandoned(lifecycle.ActionRetire, lifecycle.Options{Drain: true, DrainTimeoutSeconds: 60}, lifecycle.NodeActive, lifecycle.NodeActive),
	} {
		require.Equal(t, command, s.Options[1].Command)
	}
	for a, harm := range map[lifecycle.Action]lifecycle.Harm{lifecycle.ActionDrain: lifecycle.HarmWork, lifecycle.ActionRemove: lifecycle.HarmFinal,
		lifecycle.ActionTerminate: lifecycle.HarmFinal,
		lifecycle.ActionRetire:    lifecycle.HarmNone, lifecycle.ActionEnroll: lifecycle.HarmNone} {
		p, _ := lifecycle.PlanOf(a, lifecycle.Options{})
		require.Equal(t, harm, abandoned(a, lifecycle.Options{}, p.From[0], p.From[0]).Options[1].Harm, a)
	}
}

// TestStateWithoutOperation: only draining, terminating and removing have no action of their own.
func TestStateWithoutOperation(t *testing.T) {
	t.Parallel()
	for _, s := range lifecycle.NodeStates() {
		want := s
		if slices.Contains([]lifecycle.NodeState{lifecycle.NodeDraining, lifecycle.NodeTerminating, lifecycle.NodeRemoving}, s) {
			want = lifecycle.NodeOffline
		}
		require.Equal(t, want, s.Without(lifecycle.NodeOffline), s)
	}
}

// TestRunEndsAreParkReasons: each way a run can end is explained once.
func TestRunEndsAreParkReasons(t *testing.T) {
	t.Parallel()
	means := map[string]string{}
	for _, r := range lifecycle.ParkReasons() {
		require.Empty(t, means[r.Reason], "%s twice", r.Reason)
		require.True(t, strings.HasSuffix(r.Means, ".") && strings.HasSuffix(r.Next, "."), r.Reason)
		means[r.Reason] = r.Means
	}
	require.Len(t, lifecycle.RunEnds(), 5)
	for _, end := range lifecycle.RunEnds() {
		require.Contains(t, means[string(end)], "abandoned", end)
	}
	require.False(t, lifecycle.OperationAbandoned.Ended())
	require.Contains(t, lifecycle.OperationStates(), lifecycle.OperationAbandoned)
}

// TestAbandonedRestart: the command that starts an abandoned operation again has the options of the
// operation. Without them it would be another one: a repair that climbs more rungs than the operation
// was allowed to, or a node with copies of its identity that returns to service.
func TestAbandonedRestart(t *testing.T) {
	t.Parallel()
	reset := recovery.Request{Rungs: []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot}, Approve: []recovery.Rung{recovery.RungReboot},
		GPUs: []string{"GPU-1", "GPU-2"}, RebootWaitSeconds: 90}
	rma := recovery.Request{Fault: recovery.Fault{Checker: "gpu", Repair: health.RepairRMA}}
	for _, c := range []struct {
		action  lifecycle.Action
		state   lifecycle.NodeState
		options lifecycle.Options
		flags   string
	}{
		{lifecycle.ActionUpgradeAgent, lifecycle.NodeActive, lifecycle.Options{AgentVersion: "v1.4.0"}, " --version v1.4.0"},
		{lifecycle.ActionUpgradeAgent, lifecycle.NodeActive, lifecycle.Options{AgentVersion: "v1 x", Downgrade: true}, " --version 'v1 x' --downgrade"},
		{lifecycle.ActionRecover, lifecycle.NodeQuarantined, lifecycle.Options{}, ""},
		{lifecycle.ActionRecover, lifecycle.NodeQuarantined, lifecycle.Options{Recovery: reset},
			" --rung reset_gpu,reboot --approve reboot --gpu GPU-1,GPU-2 --reboot-wait 1m30s"},
		{lifecycle.ActionRecover, lifecycle.NodeQuarantined, lifecycle.Options{Recovery: rma}, " --rung quarantine"},
		{lifecycle.ActionReactivate, lifecycle.NodeRetired, lifecycle.Options{NewIdentity: true}, " --new-identity"},
		{lifecycle.ActionRetire, lifecycle.NodeActive, lifecycle.Options{Force: true}, " --force --reason TEXT"},
		{lifecycle.ActionProvision, lifecycle.NodeRegistered, lifecycle.Options{Machine: machine.Options{Region: "fra1", Type: "gpu-8", Image: "os:1", Spot: true}},
			" --provider-region fra1 --type gpu-8 --image os:1 --spot"},
		{lifecycle.ActionTerminate, lifecycle.NodeActive, lifecycle.Options{Force: true}, ""},
	} {
		p, ok := lifecycle.PlanOf(c.action, c.options)
		require.True(t, ok)
		s := p.Abandoned(lifecycle.NodeRef{Host: "gpu-17", State: c.state}, c.state, c.options, lifecycle.RunTerminated)
		require.Len(t, s.Options, 2, c.action)
		require.Equal(t, "gpuaas node "+string(c.action)+" gpu-17"+c.flags, s.Options[1].Command)
	}
	p, _ := lifecycle.PlanOf(lifecycle.ActionUpgradeAgent, lifecycle.Options{})
	s := p.Abandoned(lifecycle.NodeRef{Host: "gpu-17", State: lifecycle.NodeActive}, lifecycle.NodeActive, lifecycle.Options{}, lifecycle.RunTerminated)
	require.Len(t, s.Options, 1, "the release is not on record")
}
