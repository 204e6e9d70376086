package lifecycle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// wholeLadder is a repair with every rung and every approval.
func wholeLadder() recovery.Request {
	all := []recovery.Rung{recovery.RungResetGPU, recovery.RungReboot, recovery.RungReplace, recovery.RungQuarantine}
	return recovery.Request{Rungs: all, Approve: all[:3], Fault: recovery.Fault{Checker: "gpu_xid", Reason: "Xid", Code: 79}}
}

func phaseNames(p lifecycle.Plan) (names []string) {
	for _, s := range p.Phases {
		names = append(names, s.Name)
	}
	return names
}

// TestPlanOfARepair: the phases follow from the rungs, and without any from what the fault needs.
func TestPlanOfARepair(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		request recovery.Request
		want    []string
	}{
		{recovery.Request{}, []string{"cordon", "drain", "reboot", "wait-reboot", "verify-reboot", "restore-cordon", "evidence", "recovered"}},
		{recovery.Request{Fault: recovery.Fault{Repair: health.RepairResetGPU}},
			[]string{"cordon", "drain", "reset-gpu", "verify-reset", "reboot", "wait-reboot", "verify-reboot", "restore-cordon", "evidence", "recovered"}},
		{recovery.Request{Fault: recovery.Fault{Repair: health.RepairRMA}}, []string{"cordon", "restore-cordon", "evidence", "recovered"}},
		{recovery.Request{Rungs: []recovery.Rung{recovery.RungReboot}}, []string{"cordon", "drain", "reboot", "wait-reboot", "verify-reboot", "restore-cordon", "recovered"}},
		{wholeLadder(), []string{"verify-fault", "cordon", "approve-reset", "drain", "reset-gpu", "verify-reset", "approve-reboot", "reboot",
			"wait-reboot", "verify-reboot", "approve-replace", "teardown", "replace", "adopt", "machine", "enroll", "agent", "facts", "verify-replace",
			"restore-cordon", "evidence", "recovered"}},
	} {
		p, ok := lifecycle.PlanOf(lifecycle.ActionRecover, lifecycle.Options{Recovery: c.request})
		require.True(t, ok)
		require.Equal(t, c.want, phaseNames(p))
	}
}

// TestLastRungParks: a failure climbs only while another rung follows.
func TestLastRungParks(t *testing.T) {
	t.Parallel()
	climbs := func(r ...recovery.Rung) (names []string) {
		p, _ := lifecycle.PlanOf(lifecycle.ActionRecover, lifecycle.Options{Recovery: recovery.Request{Rungs: r}})
		for _, s := range p.Phases {
			if s.Climbs {
				names = append(names, s.Name)
			}
		}
		return names
	}
	require.Empty(t, climbs(recovery.RungReboot))
	require.Equal(t, []string{"reset-gpu", "verify-reset"}, climbs(recovery.RungResetGPU, recovery.RungReboot))
	require.Equal(t, []string{"reboot", "wait-reboot", "verify-reboot"}, climbs(recovery.RungReboot, recovery.RungQuarantine))
}

// TestRebootWait: a node without GPUs boots faster, and a request may name another wait.
func TestRebootWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpus    int
		seconds int64
		want    time.Duration
	}{{8, 0, 40 * time.Minute}, {0, 0, 10 * time.Minute}, {0, 60, time.Minute}, {8, 7200, 2 * time.Hour}} {
		o := lifecycle.Options{Recovery: recovery.Request{RebootWaitSeconds: c.seconds}}
		p, _ := lifecycle.PlanOf(lifecycle.ActionRecover, o)
		p = p.ForGPUs(c.gpus, o)
		i := slices.IndexFunc(p.Phases, func(s lifecycle.PhaseSpec) bool { return s.Name == lifecycle.PhaseWaitReboot })
		require.Equal(t, c.want, p.Phases[i].Budget)
	}
	drain, _ := lifecycle.PlanOf(lifecycle.ActionDrain, lifecycle.Options{})
	require.Equal(t, drain, drain.ForGPUs(0, lifecycle.Options{}))
}

func TestCheckRecovery(t *testing.T) {
	t.Parallel()
	for _, r := range []recovery.Request{{}, wholeLadder(), {GPUs: []string{"GPU-5b1f"}, RebootWaitSeconds: 86400}, {Approve: []recovery.Rung{recovery.RungReboot}}} {
		require.NoError(t, lifecycle.CheckRecovery(r), "%v", r)
	}
	for message, r := range map[string]recovery.Request{
		"recovery: unknown rung `pray`: the rungs are": {Rungs: []recovery.Rung{"pray"}},
		"recovery: the rungs must have this order":     {Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungResetGPU}},
		"each at most once":                            {Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungReboot}},
		"approve has `reset_gpu`":                      {Approve: []recovery.Rung{recovery.RungResetGPU}},
		"approve has `quarantine`":                     {Approve: []recovery.Rung{recovery.RungQuarantine}},
		"gpus must be at most 64 UUIDs":                {GPUs: []string{"a b"}},
		"reboot_wait_seconds must be 0 to 86400":       {RebootWaitSeconds: 86401},
		"the fault's checker":                          {Fault: recovery.Fault{Checker: "a\nb"}},
	} {
		err := lifecycle.CheckRecovery(r)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), message)
		require.ErrorContains(t, err, message)
	}
}
