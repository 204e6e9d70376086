package lifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// legal is written by hand, independently of the plans under test: which action
// may start in which state, and where it leads.
func legal() map[lifecycle.Action]map[lifecycle.NodeState]lifecycle.NodeState {
	return map[lifecycle.Action]map[lifecycle.NodeState]lifecycle.NodeState{
		lifecycle.ActionEnroll: {lifecycle.NodeRegistered: lifecycle.NodeActive, lifecycle.NodeBootstrapIssued: lifecycle.NodeActive, lifecycle.NodeEnrolling: lifecycle.NodeActive},
		lifecycle.ActionProvision: {lifecycle.NodeRegistered: lifecycle.NodeActive, lifecycle.NodeBootstrapIssued: lifecycle.NodeActive,
			lifecycle.NodeEnrolling: lifecycle.NodeActive, lifecycle.NodeActive: lifecycle.NodeActive},
		lifecycle.ActionHeartbeatLost: {lifecycle.NodeActive: lifecycle.NodeOffline},
		lifecycle.ActionHeartbeatBack: {lifecycle.NodeOffline: lifecycle.NodeActive},
		lifecycle.ActionQuarantine:    {lifecycle.NodeActive: lifecycle.NodeQuarantined, lifecycle.NodeOffline: lifecycle.NodeQuarantined, lifecycle.NodeDrained: lifecycle.NodeQuarantined},
		lifecycle.ActionRelease:       {lifecycle.NodeQuarantined: lifecycle.NodeActive},
		lifecycle.ActionUncordon:      {lifecycle.NodeActive: "", lifecycle.NodeOffline: ""},
		lifecycle.ActionDrain:         {lifecycle.NodeActive: lifecycle.NodeDrained, lifecycle.NodeOffline: lifecycle.NodeDrained, lifecycle.NodeQuarantined: lifecycle.NodeDrained},
		lifecycle.ActionRetire: {lifecycle.NodeActive: lifecycle.NodeRetired, lifecycle.NodeOffline: lifecycle.NodeRetired, lifecycle.NodeQuarantined: lifecycle.NodeRetired,
			lifecycle.NodeDrained: lifecycle.NodeRetired},
		lifecycle.ActionReactivate: {lifecycle.NodeRetired: lifecycle.NodeActive, lifecycle.NodeDrained: lifecycle.NodeActive},
		lifecycle.ActionTerminate: {lifecycle.NodeRegistered: lifecycle.NodeRegistered, lifecycle.NodeBootstrapIssued: lifecycle.NodeRegistered,
			lifecycle.NodeEnrolling: lifecycle.NodeRegistered, lifecycle.NodeActive: lifecycle.NodeRegistered, lifecycle.NodeOffline: lifecycle.NodeRegistered,
			lifecycle.NodeQuarantined: lifecycle.NodeRegistered, lifecycle.NodeDrained: lifecycle.NodeRegistered, lifecycle.NodeRetired: lifecycle.NodeRegistered},
		lifecycle.ActionRemove: {lifecycle.NodeRegistered: lifecycle.NodeRemoved, lifecycle.NodeBootstrapIssued: lifecycle.NodeRemoved,
			lifecycle.NodeEnrolling: lifecycle.NodeRemoved, lifecycle.NodeRetired: lifecycle.NodeRemoved},
		lifecycle.ActionRecover: {lifecycle.NodeActive: lifecycle.NodeActive, lifecycle.NodeOffline: lifecycle.NodeActive,
			lifecycle.NodeQuarantined: lifecycle.NodeActive},
		lifecycle.ActionUpgradeAgent: {lifecycle.NodeActive: "", lifecycle.NodeOffline: "", lifecycle.NodeQuarantined: "", lifecycle.NodeDrained: "", lifecycle.NodeRetired: ""},
		lifecycle.ActionReissueEnrollment: {lifecycle.NodeRegistered: "", lifecycle.NodeBootstrapIssued: "", lifecycle.NodeEnrolling: "", lifecycle.NodeActive: "",
			lifecycle.NodeOffline: "", lifecycle.NodeQuarantined: "", lifecycle.NodeDrained: "", lifecycle.NodeRetired: ""},
	}
}

func TestEveryActionInEveryState(t *testing.T) {
	t.Parallel()
	want := legal()
	for _, p := range lifecycle.All() {
		if p.Action == lifecycle.ActionRegister {
			continue
		}
		for _, s := range lifecycle.NodeStates() {
			plan, err := lifecycle.CheckStart(p.Action, s)
			to, ok := want[p.Action][s]
			if !ok {
				require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%s in %s", p.Action, s)
				require.ErrorContains(t, err, string(s))
				continue
			}
			require.NoError(t, err, "%s in %s", p.Action, s)
			require.Equal(t, to, plan.To, "%s in %s", p.Action, s)
		}
	}
	require.Len(t, want, len(lifecycle.All())-1, "an action is missing here")
}

func TestPlansAreConsistent(t *testing.T) {
	t.Parallel()
	for _, p := range lifecycle.All() {
		for _, s := range slices.Concat(p.From, p.Through) {
			require.Contains(t, lifecycle.NodeStates(), s, p.Action)
		}
		require.True(t, p.To == "" || slices.Contains(lifecycle.NodeStates(), p.To))
		require.True(t, p.Enter == "" || slices.Contains(lifecycle.NodeStates(), p.Enter))
		require.NotEmpty(t, p.Does)
		require.Equal(t, p.Workflow != "", len(p.Phases) > 0, "%s", p.Action)
		if p.Workflow == "" {
			require.False(t, p.Holds, "%s", p.Action)
			continue
		}
		require.Equal(t, p.Action != lifecycle.ActionReissueEnrollment, p.Holds, "%s", p.Action)
		require.NotEmpty(t, p.Outcome, "%s", p.Action)
		same, ok := lifecycle.PlanOfWorkflow(p.Workflow)
		require.True(t, ok)
		require.Equal(t, p.Action, same.Action)
		require.Equal(t, p.Holds, lifecycle.WorkflowID(p.Action, "h", "n") == lifecycle.NodeWorkflowID("h", "n"), "%s", p.Action)
	}
}

func TestRefusalNamesNextAction(t *testing.T) {
	t.Parallel()
	_, err := lifecycle.CheckStart(lifecycle.ActionRemove, lifecycle.NodeActive)
	require.ErrorContains(t, err, "gpuaas node retire NODE")
	_, err = lifecycle.CheckStart(lifecycle.ActionRetire, lifecycle.NodeRemoved)
	require.ErrorContains(t, err, "register the host as a new node")
	_, err = lifecycle.CheckStart(lifecycle.ActionEnroll, lifecycle.NodeDrained)
	require.NotContains(t, err.Error(), "terminate", "a refusal suggests nothing that is final")
	_, err = lifecycle.CheckStart("explode", lifecycle.NodeActive)
	require.ErrorContains(t, err, `unknown action "explode"`)
}

// variants are the options that change a plan.
func variants() []lifecycle.Options {
	return []lifecycle.Options{{}, {Drain: true}, {CordonOnly: true}, {Drain: true, CordonOnly: true}, {Recovery: wholeLadder()}}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for _, p := range lifecycle.Operations() {
		for _, o := range variants() {
			plan, _ := lifecycle.PlanOf(p.Action, o)
			seen := map[string]bool{}
			for i, s := range plan.Phases {
				require.False(t, seen[s.Name], "%s has phase %s twice", p.Action, s.Name)
				seen[s.Name] = true
				require.Positive(t, s.Budget, "%s/%s has no budget", p.Action, s.Name)
				require.NotEmpty(t, s.Title)
				require.NotEmpty(t, s.Cause)
				require.NotEqual(t, lifecycle.AttentionNone, s.WaitingOn)
				require.Equal(t, i < len(plan.Phases)-1, s.Allows(lifecycle.DecisionRetry) || s.Allows(lifecycle.DecisionBootstrap),
					"%s/%s: every phase but the record can be retried, or names the command that helps", p.Action, s.Name)
			}
		}
	}
	plan, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true})
	require.Equal(t, "cordoned", plan.Phases[len(plan.Phases)-1].Name)
	plan, _ = lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{DrainTimeoutSeconds: 3600})
	require.Greater(t, plan.Phases[1].Budget, time.Hour)
}

// TestOptions holds every option of every phase: it says what it does there, its
// command can be pasted, and the first one destroys nothing.
func TestOptions(t *testing.T) {
	t.Parallel()
	rank := map[lifecycle.Harm]int{lifecycle.HarmNone: 0, lifecycle.HarmWork: 1, lifecycle.HarmFinal: 2}
	for _, p := range lifecycle.Operations() {
		for _, o := range variants() {
			plan, _ := lifecycle.PlanOf(p.Action, o)
			phases := plan.Phases[:len(plan.Phases)-1]
			if plan.Undo != nil {
				phases = append(slices.Clone(phases), *plan.Undo)
			}
			for _, s := range phases {
				options := plan.OptionsIn(s, "gpu-17", "op-1", time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC))
				require.Equal(t, lifecycle.HarmNone, options[0].Harm, "%s/%s", p.Action, s.Name)
				seen := map[lifecycle.Decision]bool{}
				for i, option := range options {
					require.False(t, seen[option.Decision], "%s/%s offers %s twice", p.Action, s.Name, option.Decision)
					seen[option.Decision] = true
					require.NotEmpty(t, option.Does)
					if option.Decision == lifecycle.DecisionBootstrap {
						require.Equal(t, "gpuaas node bootstrap-script gpu-17", option.Command)
						continue
					}
					require.Contains(t, option.Command, "gpuaas op "+string(option.Decision)+" gpu-17")
					require.Contains(t, option.Command, " --operation op-1 --phase "+s.Name+" --stuck-since 2026-01-02T03:04:05.678Z ")
					require.True(t, strings.HasSuffix(option.Command, "--reason TEXT"))
					require.True(t, i == 0 || rank[options[i-1].Harm] <= rank[option.Harm], "%s/%s is not ordered by harm", p.Action, s.Name)
				}
				undo := plan.Undo != nil && s.Name == plan.Undo.Name
				require.Equal(t, !undo, seen[lifecycle.DecisionCancel], "%s/%s", p.Action, s.Name)
			}
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 400 * time.Millisecond: "0s", 59 * time.Second: "59s", 12 * time.Minute: "12m",
		3*time.Hour + 20*time.Minute: "3h20m", 125 * time.Hour: "5d5h", 90 * time.Second: "1m30s",
	} {
		require.Equal(t, want, lifecycle.Span(d))
	}
}

// TestLimitsOfAProvider: the limits of a provider bound the phases that wait for it, and no other
// plan.
func TestLimitsOfAProvider(t *testing.T) {
	t.Parallel()
	provider := machine.Info{Creates: true, Limits: machine.Limits{Create: time.Hour, Boot: 2 * time.Hour, Delete: 3 * time.Hour}}
	budgets := func(a lifecycle.Action, on machine.Info) map[string]time.Duration {
		p, ok := lifecycle.PlanOf(a, lifecycle.Options{})
		require.True(t, ok)
		p = p.On(on)
		all := map[string]time.Duration{}
		if p.Undo != nil {
			all[p.Undo.Name] = p.Undo.Budget
		}
		for _, s := range p.Phases {
			all[s.Name] = s.Budget
		}
		return all
	}
	for a, want := range map[lifecycle.Action]map[string]time.Duration{
		lifecycle.ActionProvision: {lifecycle.PhaseMachine: time.Hour, lifecycle.PhaseEnroll: 2 * time.Hour, lifecycle.PhaseUndoAdopt: 3 * time.Hour},
		lifecycle.ActionRemove:    {lifecycle.PhaseTeardown: 3 * time.Hour},
		lifecycle.ActionTerminate: {lifecycle.PhaseTeardown: 3 * time.Hour, lifecycle.PhaseUndoTeardown: 3 * time.Hour},
	} {
		limited, plain := budgets(a, provider), budgets(a, machine.Info{Creates: true})
		for phase, budget := range limited {
			if want[phase] == 0 {
				want[phase] = plain[phase]
			}
			require.Equal(t, want[phase], budget, "%s %s", a, phase)
		}
		require.NotEqual(t, limited, plain)
		require.NotContains(t, budgets(a, machine.Info{Limits: provider.Limits}), lifecycle.PhaseMachine, "a machine that is not created")
	}
}
