package lifecycle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestAdmit(t *testing.T) {
	t.Parallel()
	work := []string{"process train-1"}
	creating := machine.Info{Name: "libvirt", Creates: true}
	lock := &trust.IdentityLock{Reason: trust.LockedBySerial, Since: time.Date(2026, 11, 24, 19, 20, 14, 0, time.UTC)}
	for name, tc := range map[string]struct {
		node    lifecycle.Candidate
		action  lifecycle.Action
		options lifecycle.Options
		kind    schema.Kind
		reason  string
	}{
		"state":                             {lifecycle.Candidate{State: lifecycle.NodeActive}, lifecycle.ActionRemove, lifecycle.Options{}, schema.KindInvalidRequest, "invalid_state"},
		"provisioned":                       {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, "already_provisioned"},
		"not enrolled":                      {lifecycle.Candidate{State: lifecycle.NodeRegistered}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, "not_enrolled"},
		"created":                           {lifecycle.Candidate{State: lifecycle.NodeRegistered, Provider: machine.Info{Creates: true, Catalog: machine.Catalog{Types: []machine.Type{{ID: "a1"}}}}}, lifecycle.ActionProvision, lifecycle.Options{}, "", ""},
		"no machine to choose":              {lifecycle.Candidate{State: lifecycle.NodeActive}, lifecycle.ActionProvision, lifecycle.Options{Machine: machine.Options{Type: "a1"}}, schema.KindInvalidRequest, "no_machine_options"},
		"machine of a type":                 {lifecycle.Candidate{State: lifecycle.NodeEnrolling, Provider: machine.Info{Creates: true, Catalog: machine.Catalog{Types: []machine.Type{{ID: "a1"}}}}}, lifecycle.ActionProvision, lifecycle.Options{Machine: machine.Options{Type: "a1"}}, "", ""},
		"machine not offered":               {lifecycle.Candidate{State: lifecycle.NodeEnrolling, Provider: machine.Info{Creates: true}}, lifecycle.ActionProvision, lifecycle.Options{Machine: machine.Options{Type: "a1"}}, schema.KindInvalidRequest, machine.ReasonNotOffered},
		"enrolled by hand":                  {lifecycle.Candidate{State: lifecycle.NodeActive, Provider: machine.Info{Creates: true}}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, "already_enrolled"},
		"disabled":                          {lifecycle.Candidate{State: lifecycle.NodeRegistered, Provider: machine.Info{Creates: true, Disabled: "not set"}}, lifecycle.ActionProvision, lifecycle.Options{}, schema.KindInvalidRequest, machine.ReasonDisabled},
		"busy retire":                       {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{}, schema.KindNodeInUse, ""},
		"busy drained":                      {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{Drain: true}, "", ""},
		"forced retire":                     {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionRetire, lifecycle.Options{Force: true}, "", ""},
		"busy remove":                       {lifecycle.Candidate{State: lifecycle.NodeRetired, Workloads: work}, lifecycle.ActionRemove, lifecycle.Options{}, schema.KindNodeInUse, ""},
		"forced remove":                     {lifecycle.Candidate{State: lifecycle.NodeRetired, Workloads: work}, lifecycle.ActionRemove, lifecycle.Options{Force: true}, "", ""},
		"idle remove":                       {lifecycle.Candidate{State: lifecycle.NodeRetired}, lifecycle.ActionRemove, lifecycle.Options{}, "", ""},
		"never enrolled":                    {lifecycle.Candidate{State: lifecycle.NodeRegistered}, lifecycle.ActionRemove, lifecycle.Options{}, "", ""},
		"busy but only drains":              {lifecycle.Candidate{State: lifecycle.NodeActive, Workloads: work}, lifecycle.ActionDrain, lifecycle.Options{}, "", ""},
		"locked retire":                     {lifecycle.Candidate{State: lifecycle.NodeActive, Lock: lock}, lifecycle.ActionRetire, lifecycle.Options{}, schema.KindInvalidRequest, schema.ReasonNodeLocked},
		"locked drain":                      {lifecycle.Candidate{State: lifecycle.NodeActive, Lock: lock}, lifecycle.ActionDrain, lifecycle.Options{CordonOnly: true}, schema.KindInvalidRequest, schema.ReasonNodeLocked},
		"locked release":                    {lifecycle.Candidate{State: lifecycle.NodeQuarantined, Lock: lock}, lifecycle.ActionRelease, lifecycle.Options{}, schema.KindInvalidRequest, schema.ReasonNodeLocked},
		"locked and forced":                 {lifecycle.Candidate{State: lifecycle.NodeActive, Lock: lock}, lifecycle.ActionRetire, lifecycle.Options{Force: true}, "", ""},
		"locked quarantine":                 {lifecycle.Candidate{State: lifecycle.NodeActive, Lock: lock}, lifecycle.ActionQuarantine, lifecycle.Options{}, "", ""},
		"locked remove":                     {lifecycle.Candidate{State: lifecycle.NodeRetired, Lock: lock}, lifecycle.ActionRemove, lifecycle.Options{}, "", ""},
		"locked reissue":                    {lifecycle.Candidate{State: lifecycle.NodeActive, Lock: lock}, lifecycle.ActionReissueEnrollment, lifecycle.Options{}, "", ""},
		"terminate":                         {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, "", ""},
		"terminate unfinished":              {lifecycle.Candidate{State: lifecycle.NodeEnrolling, Instance: lifecycle.InstancePending, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, "", ""},
		"terminate adopted":                 {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Provider: machine.Info{Name: "manual"}}, lifecycle.ActionTerminate, lifecycle.Options{Force: true}, schema.KindInvalidRequest, "no_created_machine"},
		"terminate nothing":                 {lifecycle.Candidate{State: lifecycle.NodeRegistered, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, schema.KindInvalidRequest, "no_instance"},
		"terminate again":                   {lifecycle.Candidate{State: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, schema.KindInvalidRequest, "no_instance"},
		"terminate leftover":                {lifecycle.Candidate{State: lifecycle.NodeRegistered, OpenLedger: true, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, "", ""},
		"enrolled by hand, with a leftover": {lifecycle.Candidate{State: lifecycle.NodeActive, OpenLedger: true, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, schema.KindInvalidRequest, "no_instance"},
		"terminate draining":                {lifecycle.Candidate{State: lifecycle.NodeDraining, Instance: lifecycle.InstanceDraining, Provider: creating}, lifecycle.ActionTerminate, lifecycle.Options{}, schema.KindInvalidRequest, "invalid_state"},
		"busy terminate":                    {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Provider: creating, Workloads: work}, lifecycle.ActionTerminate, lifecycle.Options{}, schema.KindNodeInUse, ""},
		"forced terminate":                  {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Provider: creating, Workloads: work}, lifecycle.ActionTerminate, lifecycle.Options{Force: true}, "", ""},
		"locked terminate":                  {lifecycle.Candidate{State: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Provider: creating, Lock: lock}, lifecycle.ActionTerminate, lifecycle.Options{}, "", ""},
		"replace by hand":                   {lifecycle.Candidate{State: lifecycle.NodeActive, Provider: machine.Info{Name: "manual"}}, lifecycle.ActionRecover, lifecycle.Options{Recovery: recovery.Request{Rungs: []recovery.Rung{recovery.RungReplace}}}, schema.KindInvalidRequest, "no_created_machine"},
		"replace":                           {lifecycle.Candidate{State: lifecycle.NodeActive, Provider: creating}, lifecycle.ActionRecover, lifecycle.Options{Recovery: recovery.Request{Rungs: []recovery.Rung{recovery.RungReplace}}}, "", ""},
		"locked, other state":               {lifecycle.Candidate{State: lifecycle.NodeRetired, Lock: lock}, lifecycle.ActionRetire, lifecycle.Options{}, schema.KindInvalidRequest, "invalid_state"},
	} {
		p, err := tc.node.Admit(tc.action, tc.options)
		if tc.kind == "" {
			require.NoError(t, err, name)
			require.Equal(t, tc.action, p.Action, name)
			continue
		}
		require.Equal(t, tc.kind, schema.KindOf(err), name)
		require.Equal(t, tc.reason, schema.AsError(err).Reason, name)
	}
}

// The next step of a refusal is the provisioning of a node whose provider creates its machine.
func TestNextStepOfARegisteredNode(t *testing.T) {
	t.Parallel()
	for _, creates := range []bool{true, false} {
		c := lifecycle.Candidate{Host: "gpu-17", State: lifecycle.NodeRegistered, Provider: machine.Info{Creates: creates}}
		_, err := c.Admit(lifecycle.ActionDrain, lifecycle.Options{})
		require.Equal(t, "invalid_state", schema.AsError(err).Reason)
		want := map[bool]string{true: "gpuaas node provision NODE", false: "gpuaas node enroll NODE"}[creates]
		require.ErrorContains(t, err, "; run: "+want)
	}
}

// The next step of a refusal ends the lock. A machine that is gone can be retired without it.
func TestNextStepOfALockedNode(t *testing.T) {
	t.Parallel()
	c := lifecycle.Candidate{Host: "gpu-17", State: lifecycle.NodeActive, Lock: &trust.IdentityLock{Reason: trust.LockedBySessions}}
	_, err := c.Admit(lifecycle.ActionDrain, lifecycle.Options{})
	require.Equal(t, "gpuaas node reissue-enrollment gpu-17", schema.AsError(err).Next)
	_, err = c.Admit(lifecycle.ActionRetire, lifecycle.Options{})
	require.Equal(t, "gpuaas node reissue-enrollment gpu-17; if the machine is gone: gpuaas node retire gpu-17 --force --reason TEXT", schema.AsError(err).Next)
	c.Lock = &trust.IdentityLock{Reason: trust.LockedByOperator, By: "alice", Note: "key leaked"}
	_, err = c.Admit(lifecycle.ActionDrain, lifecycle.Options{})
	require.Equal(t, "gpuaas node unlock gpu-17 --reason TEXT", schema.AsError(err).Next)
	require.Contains(t, err.Error(), "its identity is locked by alice: key leaked")
}

// The next step of a refused termination is a command that can start on the node.
func TestNextStepOfATermination(t *testing.T) {
	t.Parallel()
	creating := machine.Info{Name: "libvirt", Creates: true}
	const force = "gpuaas node terminate gpu-17 --force --reason TEXT"
	for _, tc := range []struct {
		node lifecycle.Candidate
		next string
	}{
		{lifecycle.Candidate{State: lifecycle.NodeActive}, "gpuaas node retire gpu-17"},
		{lifecycle.Candidate{State: lifecycle.NodeRetired}, "gpuaas node remove gpu-17"},
		{lifecycle.Candidate{State: lifecycle.NodeRegistered, Provider: creating}, "gpuaas node remove gpu-17"},
		{lifecycle.Candidate{State: lifecycle.NodeOffline, Provider: creating, Instance: lifecycle.InstanceRunning, Workloads: []string{"job-1"}},
			"gpuaas node drain gpu-17, then gpuaas node terminate gpu-17; to end the workloads with the machine: " + force},
		{lifecycle.Candidate{State: lifecycle.NodeDrained, Provider: creating, Instance: lifecycle.InstanceDraining, Workloads: []string{"job-1"}}, force},
	} {
		tc.node.Host = "gpu-17"
		_, err := tc.node.Admit(lifecycle.ActionTerminate, lifecycle.Options{})
		require.Equal(t, tc.next, schema.AsError(err).Next, "%v", err)
	}
}

// The limits of the provider bound the deletion, and the question after a cancel.
func TestLimitsOfATermination(t *testing.T) {
	t.Parallel()
	p, _ := lifecycle.PlanOf(lifecycle.ActionTerminate, lifecycle.Options{})
	p = p.On(machine.Info{Creates: true, Limits: machine.Limits{Delete: time.Hour}})
	require.Equal(t, time.Hour, p.Phases[0].Budget)
	require.Equal(t, time.Hour, p.Undo.Budget)
	require.Len(t, p.Phases, 2)
}
