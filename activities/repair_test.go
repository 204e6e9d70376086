package activities_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// repairPort is the store and the provider of a repair.
type repairPort struct {
	activities.Repairs
	activities.MachineProvider
	boot       activities.NodeBoot
	conditions []health.Condition
	resets     map[string]bool
	phase      machine.Phase
	err        error // of Power
	powers     []machine.Power
}

func (p *repairPort) Boot(context.Context, string) (activities.NodeBoot, error) { return p.boot, nil }

func (p *repairPort) Conditions(context.Context, string) ([]health.Condition, error) {
	return p.conditions, nil
}

func (p *repairPort) BeginReset(_ context.Context, _ activities.Fence, step string) (bool, error) {
	began := !p.resets[step]
	p.resets[step] = true
	return began, nil
}

func (p *repairPort) ForgetReset(_ context.Context, _ activities.Fence, step string) error {
	delete(p.resets, step)
	return nil
}

func (p *repairPort) Describe(_ context.Context, r machine.Ref) (machine.Machine, error) {
	return machine.Machine{Ref: r, Phase: p.phase}, nil
}

func (p *repairPort) Power(_ context.Context, _ machine.Ref, change machine.Power) error {
	p.powers = append(p.powers, change)
	return p.err
}

func repairOf(p *repairPort) *activities.Repair {
	return &activities.Repair{Repairs: p, Providers: map[string]activities.Source{"acme": {Provider: p}}}
}

// reset runs ResetMachine as an activity.
func (p *repairPort) reset(t *testing.T, provider, step string) error {
	t.Helper()
	env := new(testsuite.WorkflowTestSuite).NewTestActivityEnvironment()
	r := repairOf(p)
	env.RegisterActivity(r)
	in := activities.ResetInput{Step: step, MachineInput: activities.MachineInput{Host: "gpu-17", Instance: lifecycle.Instance{InstanceID: "i", Provider: provider}}}
	_, err := env.ExecuteActivity(r.ResetMachine, in)
	return err
}

// TestResetMachine: a step asks for one hard reset, however often it runs, unless the provider certainly
// did nothing. A machine that is off is switched on.
func TestResetMachine(t *testing.T) {
	t.Parallel()
	p := &repairPort{resets: map[string]bool{}, phase: machine.Running}
	for range 2 {
		require.NoError(t, p.reset(t, "acme", "machine.reset"))
	}
	require.Equal(t, []machine.Power{machine.PowerReset}, p.powers)
	p.err = machine.Errorf(machine.ReasonAmbiguous, "no answer")
	require.Error(t, p.reset(t, "acme", "machine.reset#2"))
	require.NoError(t, p.reset(t, "acme", "machine.reset#2"), "the next boot shows what happened")
	require.Len(t, p.powers, 2)
	p.phase, p.err = machine.Stopped, nil
	require.NoError(t, p.reset(t, "acme", "machine.reset#2"), "the ambiguous reset switched it off")
	require.Equal(t, machine.PowerOn, p.powers[2])

	p = &repairPort{resets: map[string]bool{}, phase: machine.Running, err: machine.Errorf(machine.ReasonUnavailable, "not reached")}
	require.Error(t, p.reset(t, "acme", "machine.reset"))
	p.err = nil
	require.NoError(t, p.reset(t, "acme", "machine.reset"))
	require.Len(t, p.powers, 2, "a reset that had no effect is repeated")

	for _, phase := range []machine.Phase{machine.Failed, machine.Deleting, machine.Creating} {
		p = &repairPort{resets: map[string]bool{}, phase: phase}
		require.Equal(t, machine.ReasonFailed, activities.Typed(p.reset(t, "acme", "machine.reset")).Reason)
		require.Empty(t, p.powers)
	}
	require.Equal(t, lifecycle.ReasonProviderUnknown, activities.Typed(p.reset(t, "other", "machine.reset")).Reason)
}

// TestAwaitReboot: only a fresh heartbeat of another boot in the same incarnation ends the wait.
func TestAwaitReboot(t *testing.T) {
	t.Parallel()
	in := activities.RebootInput{NodeID: "n", BootID: "boot-1", Incarnation: 3, Since: time.Now().Add(-10 * time.Minute)}
	for name, c := range map[string]struct {
		boot activities.NodeBoot
		in   activities.RebootInput
		want string
	}{
		"another boot":               {activities.NodeBoot{BootID: "boot-2", Incarnation: 3}, in, "boot-2"},
		"the same boot":              {activities.NodeBoot{BootID: "boot-1", Incarnation: 3}, in, ""},
		"no boot ID":                 {activities.NodeBoot{Incarnation: 3}, in, ""},
		"a boot ID that is a text":   {activities.NodeBoot{BootID: "boot 2\n", Incarnation: 3}, in, ""},
		"no heartbeat":               {activities.NodeBoot{BootID: "boot-2", Incarnation: 3, Age: -1}, in, ""},
		"an old heartbeat":           {activities.NodeBoot{BootID: "boot-2", Incarnation: 3, Age: time.Hour}, in, ""},
		"another incarnation":        {activities.NodeBoot{BootID: "boot-2", Incarnation: 4}, in, ""},
		"an unknown boot, restarted": {activities.NodeBoot{BootID: "boot-2", Incarnation: 3, Uptime: time.Minute}, activities.RebootInput{Incarnation: 3, Since: in.Since}, "boot-2"},
		"an unknown boot that ran before the heartbeat": {activities.NodeBoot{BootID: "boot-1", Incarnation: 3, Age: 2 * time.Minute, Uptime: 9 * time.Minute},
			activities.RebootInput{Incarnation: 3, Since: in.Since}, ""},
		"an unknown boot that runs": {activities.NodeBoot{BootID: "boot-1", Incarnation: 3, Uptime: time.Hour}, activities.RebootInput{Incarnation: 3, Since: in.Since}, ""},
	} {
		got, err := repairOf(&repairPort{boot: c.boot}).AwaitReboot(t.Context(), c.in)
		require.Equal(t, c.want, got, name)
		if c.want == "" {
			require.Equal(t, schema.KindAgentSilent, activities.Typed(err).Kind, name)
		}
	}
}

// TestAwaitRebootWithoutHeartbeats: while the node API receives no heartbeats, the last one of the old boot says nothing
// about the node: the failure is that of the control plane, for which no repair climbs.
func TestAwaitRebootWithoutHeartbeats(t *testing.T) {
	t.Parallel()
	in := activities.RebootInput{NodeID: "n", BootID: "boot-1", Incarnation: 3}
	for _, age := range []time.Duration{time.Minute, time.Hour} {
		_, err := repairOf(&repairPort{boot: activities.NodeBoot{BootID: "boot-1", Incarnation: 3, Age: age, Deaf: true}}).AwaitReboot(t.Context(), in)
		require.Equal(t, lifecycle.ReasonNodeAPIDown, activities.Typed(err).Reason, age)
	}
	got, err := repairOf(&repairPort{boot: activities.NodeBoot{BootID: "boot-2", Incarnation: 3, Age: time.Minute, Deaf: true}}).AwaitReboot(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, "boot-2", got)
}

// TestReadRepair: a fault has ended only if a condition of its checker and component is healthy.
func TestReadRepair(t *testing.T) {
	t.Parallel()
	fault := recovery.Fault{Checker: "gpu_xid", Component: "GPU-1"}
	two := []health.Condition{{Checker: "gpu_xid", Component: "GPU-1", Status: health.Healthy}, {Checker: "gpu_xid", Component: "GPU-1", Status: health.Unhealthy}}
	facts, err := repairOf(&repairPort{conditions: two}).ReadRepair(t.Context(), "n", fault)
	require.NoError(t, err)
	require.False(t, facts.Healed, "another reporter still has the fault")
	for name, c := range map[string]struct {
		condition health.Condition
		want      bool
	}{
		"healthy":           {health.Condition{Checker: "gpu_xid", Component: "GPU-1", Status: health.Healthy}, true},
		"unhealthy":         {health.Condition{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unhealthy}, false},
		"unknown":           {health.Condition{Checker: "gpu_xid", Component: "GPU-1", Status: health.Unknown}, false},
		"another component": {health.Condition{Checker: "gpu_xid", Component: "GPU-2", Status: health.Healthy}, false},
		"another checker":   {health.Condition{Checker: "gpu_ecc", Component: "GPU-1", Status: health.Healthy}, false},
	} {
		facts, err := repairOf(&repairPort{conditions: []health.Condition{c.condition}}).ReadRepair(t.Context(), "n", fault)
		require.NoError(t, err)
		require.Equal(t, c.want, facts.Healed, name)
	}
}

// TestReadRepairOfSilence: a heartbeat ends the silence for which a node is repaired. No condition says so.
func TestReadRepairOfSilence(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		age  time.Duration
		want bool
	}{"silent": {time.Hour, false}, "no heartbeat": {-1, false}, "returned": {0, true}} {
		facts, err := repairOf(&repairPort{boot: activities.NodeBoot{Age: c.age}}).ReadRepair(t.Context(), "n", recovery.Fault{Checker: health.CheckerHeartbeat, Reason: "Silent"})
		require.NoError(t, err)
		require.Equal(t, c.want, facts.Healed, name)
	}
}

// TestDeafNodeAPI: while the node API receives no heartbeats, no node counts as silent, which would reset it without
// a drain.
func TestDeafNodeAPI(t *testing.T) {
	t.Parallel()
	r := repairOf(&repairPort{boot: activities.NodeBoot{BootID: "b1", Age: time.Hour, Deaf: true}})
	_, err := r.ReadRepair(t.Context(), "n", recovery.Fault{})
	require.ErrorContains(t, err, "the node API receives no heartbeats")
	_, err = r.AwaitReboot(t.Context(), activities.RebootInput{BootID: "b0"})
	require.ErrorContains(t, err, "the node API receives no heartbeats")
}

// TestReadRepairOfComponent: a checker of hosts has no condition of a component without a fault. It is
// healthy for the whole node then.
func TestReadRepairOfComponent(t *testing.T) {
	t.Parallel()
	tracker := health.NewTracker(health.Report{})
	fault := recovery.Fault{Checker: "host_services", Component: "nvidia-fabricmanager"}
	checkers, err := host.Checkers()
	require.NoError(t, err)
	healed := func(services ...host.Service) bool {
		sample := host.Sample{At: time.Now(), Services: services}
		report := tracker.Observe(sample.At, "b1", health.Run(checkers, sample))
		facts, err := repairOf(&repairPort{conditions: report.Conditions}).ReadRepair(t.Context(), "n", fault)
		require.NoError(t, err)
		return facts.Healed
	}
	fabric, other := host.Service{Name: fault.Component}, host.Service{Name: "nvidia-persistenced"}
	require.False(t, healed(fabric))
	fabric.Active = true
	require.False(t, healed(fabric, other), "the checker still has a fault")
	other.Active = true
	require.True(t, healed(fabric, other))

	for status, want := range map[health.Status]bool{health.Healthy: true, health.Unhealthy: false, health.Unknown: false} {
		all := []health.Condition{{Checker: fault.Checker, Status: health.Healthy}, {Checker: fault.Checker, Component: fault.Component, Status: status}}
		facts, err := repairOf(&repairPort{conditions: all}).ReadRepair(t.Context(), "n", fault)
		require.NoError(t, err)
		require.Equal(t, want, facts.Healed, "another reporter finds it %s", status)
	}
}
