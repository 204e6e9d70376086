package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// created registers a node and provisions it on a machine that its provider creates.
func (e *env) created() *machine {
	e.t.Helper()
	n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
	m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID, Host: n.Host}}
	m.provision(1)
	return m
}

// provision provisions the node on a new machine with the node's n-th key, and returns its instance.
func (m *machine) provision(n int) lifecycle.Instance {
	m.e.t.Helper()
	ctx, l := m.e.t.Context(), m.e.Store.Operations
	c := m.e.claim(m.caller.NodeID, lifecycle.ActionProvision)
	r := activities.Resource{ResourceID: c.Instance.InstanceID, NodeID: m.caller.NodeID, Kind: "instance", Provider: "libvirt"}
	_, err := l.Plan(ctx, c.Fence, r)
	require.NoError(m.e.t, err)
	require.NoError(m.e.t, l.Created(ctx, c.Fence, r.ResourceID, "machine-"+r.ResourceID))
	tokenID, hash := m.e.token(m.caller.NodeID)
	m.enroll(tokenID, hash, m.k(n))
	require.NoError(m.e.t, m.e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive,
		Instance: lifecycle.InstanceRunning}))
	return c.Instance
}

// requireGone requires that the identity of a machine is refused.
func (m *machine) requireGone(a answer) {
	m.e.t.Helper()
	_, err := m.e.Authenticate(m.e.t.Context(), a.id, a.cert)
	require.Equal(m.e.t, schema.KindInvalidNodeIdentity, schema.KindOf(err), "%v", err)
	require.False(m.e.t, m.e.locked(m.caller.NodeID), "the old machine locks nothing")
}

// terminated is the end of a termination that deleted the machine.
func terminated(s lifecycle.OperationState) activities.Finish {
	return activities.Finish{Status: s, Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated}
}

// TestTerminateAndProvisionAgain: the node outlives its machine. Its second machine is another
// instance of the same node with one history and one audit chain, and the first machine is refused.
func TestTerminateAndProvisionAgain(t *testing.T) {
	e := setup(t)
	ctx, l := t.Context(), e.Store.Operations
	m := e.created()
	id := m.caller.NodeID
	first, held := e.node(id).Instance.InstanceID, m.held()
	require.NoError(t, e.heartbeat(m.caller, wire.Heartbeat{Cordoned: true, Fault: "old", Workloads: []task.Workload{{Name: "job-1", Kind: "process"}}}))

	_, err := e.Claim(ctx, request(id, lifecycle.ActionTerminate))
	requireKind(t, err, schema.KindNodeInUse, "")
	require.Equal(t, lifecycle.NodeActive, e.node(id).State)
	forced := request(id, lifecycle.ActionTerminate)
	forced.Options.Force = true
	c, err := e.Claim(ctx, forced)
	require.NoError(t, err)
	require.Equal(t, first, c.Instance.InstanceID)
	require.Equal(t, lifecycle.InstanceRunning, c.Instance.State, "a cancel restores it")
	require.Equal(t, lifecycle.NodeTerminating, e.node(id).State)
	require.Equal(t, lifecycle.InstanceTerminating, e.node(id).Instance.State)
	requireKind(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)), schema.KindInvalidRequest, "resources_open")
	m.use()

	require.NoError(t, l.Released(ctx, c.Fence, first))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)), "again")
	n := e.node(id)
	require.Equal(t, lifecycle.NodeRegistered, n.State)
	require.Equal(t, lifecycle.InstanceTerminated, n.Instance.State)
	require.False(t, n.Cordoned)
	require.Empty(t, n.Workloads, "those of the machine that is gone")
	require.Empty(t, n.AgentFault)
	m.requireGone(held)
	progress, err := e.Enrollment(ctx, id)
	require.NoError(t, err)
	require.Equal(t, activities.Enrollment{Incarnation: 2}, progress, "repeated once, one incarnation")

	second := m.provision(2)
	require.NotEqual(t, first, second.InstanceID)
	require.Equal(t, int64(2), m.caller.Incarnation)
	m.use()
	m.requireGone(held)
	n = e.node(id)
	require.Equal(t, lifecycle.NodeActive, n.State)
	require.Equal(t, second.InstanceID, n.Instance.InstanceID)
	require.Equal(t, lifecycle.InstanceRunning, n.Instance.State)
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM instances WHERE node_id = $1", id))
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM instances WHERE node_id = $1 AND state = 'terminated' AND ended_at IS NOT NULL", id))
	require.Len(t, e.operations(id, false), 3)
	rows := e.audit(id) // checked as one chain
	require.Equal(t, 2, count(rows, "nodes.provision succeeded"))
	require.Equal(t, 1, count(rows, "nodes.terminate refused node_in_use"))
	require.Equal(t, 1, count(rows, "nodes.terminate succeeded"))
}

// TestTerminationForgetsTheMachine: a terminated node shows nothing of its machine, like one that was
// just registered, and a restore mode does not miss its agent.
func TestTerminationForgetsTheMachine(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	id := m.caller.NodeID
	require.NoError(t, e.heartbeat(m.caller, wire.Heartbeat{AgentVersion: "1.2.3", BootID: "boot-1", UptimeSeconds: 60, Driver: "docker",
		DriverFault: "down", Fault: "old", Cordoned: true}))
	e.exec(`UPDATE nodes SET facts = '{"cpus": 64, "gpus": [{}]}' WHERE node_id = $1`, id)
	n := e.node(id)
	require.NotNil(t, n.LastHeartbeatAt)
	require.NotNil(t, n.Facts)

	c := e.claim(id, lifecycle.ActionTerminate)
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)))
	fresh := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
	n = e.node(id)
	require.Equal(t, int64(2), n.Incarnation)
	require.Equal(t, lifecycle.InstanceTerminated, n.Instance.State)
	fresh.ID, fresh.Host, fresh.Incarnation, fresh.Instance = n.ID, n.Host, n.Incarnation, n.Instance
	fresh.StateSince, fresh.CreatedAt = n.StateSince, n.CreatedAt
	require.Equal(t, fresh, n)

	mode := e.owner()
	_, err := mode.Start(ctx, "the disk broke", time.Hour, operator)
	require.NoError(t, err)
	status, err := mode.Status(ctx)
	require.NoError(t, err)
	require.Empty(t, status.Absent)
}

// TestCancelOfATermination: a cancel restores the node and its instance as they were, or ends them if
// the machine is gone.
func TestCancelOfATermination(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	id := m.caller.NodeID
	for prior, instance := range map[lifecycle.NodeState]lifecycle.InstanceState{
		lifecycle.NodeActive: lifecycle.InstanceRunning, lifecycle.NodeOffline: lifecycle.InstanceBootstrapping,
		lifecycle.NodeDrained: lifecycle.InstanceDraining, lifecycle.NodeRetired: lifecycle.InstancePending,
		lifecycle.NodeEnrolling: lifecycle.InstanceProvisioning,
	} {
		e.exec("UPDATE nodes SET state = $2 WHERE node_id = $1", id, prior)
		e.exec("UPDATE instances SET state = $2 WHERE node_id = $1", id, instance)
		c := e.claim(id, lifecycle.ActionTerminate)
		require.Equal(t, lifecycle.InstanceTerminating, e.node(id).Instance.State)
		require.NoError(t, e.Finish(ctx, c.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: c.Prior, Instance: c.Instance.State}))
		require.Equal(t, prior, e.node(id).State)
		require.Equal(t, instance, e.node(id).Instance.State)
		m.use()
	}

	held := m.held()
	c := e.claim(id, lifecycle.ActionTerminate)
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCanceled)))
	require.Equal(t, lifecycle.NodeRegistered, e.node(id).State)
	m.requireGone(held)
	require.Contains(t, e.audit(id), "nodes.terminate "+audit.Canceled)
	_, err := e.Claim(ctx, request(id, lifecycle.ActionTerminate))
	requireKind(t, err, schema.KindInvalidRequest, "no_instance")
}

// TestTerminateAgain: a node whose termination was forced can be terminated again while its ledger has
// the machine. The second termination has no instance, and a cancel of it changes nothing.
func TestTerminateAgain(t *testing.T) {
	e := setup(t)
	ctx, l := t.Context(), e.Store.Operations
	m := e.created()
	id := m.caller.NodeID
	first := e.claim(id, lifecycle.ActionTerminate)
	forced := terminated(lifecycle.OperationCompleted)
	forced.Document = &lifecycle.OperationStatus{Operation: lifecycle.Operation{Phases: []lifecycle.Phase{{Name: lifecycle.PhaseTeardown, State: lifecycle.PhaseForced}}}}
	require.NoError(t, e.Finish(ctx, first.Fence, forced))

	again := e.claim(id, lifecycle.ActionTerminate)
	require.Equal(t, lifecycle.NodeTerminating, e.node(id).State)
	require.Empty(t, again.Instance)
	requireKind(t, e.Finish(ctx, again.Fence, terminated(lifecycle.OperationCompleted)), schema.KindInvalidRequest, "resources_open")
	require.NoError(t, e.Finish(ctx, again.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Node: again.Prior}))
	require.Equal(t, lifecycle.NodeRegistered, e.node(id).State)

	again = e.claim(id, lifecycle.ActionTerminate)
	open, err := l.Open(ctx, again.Fence)
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.NoError(t, l.Released(ctx, again.Fence, open[0].ResourceID))
	require.NoError(t, e.Finish(ctx, again.Fence, terminated(lifecycle.OperationCompleted)))
	require.Equal(t, lifecycle.NodeRegistered, e.node(id).State)
	require.Equal(t, lifecycle.InstanceTerminated, e.node(id).Instance.State)
	_, err = e.Claim(ctx, request(id, lifecycle.ActionTerminate))
	requireKind(t, err, schema.KindInvalidRequest, "no_instance")
}

// TestAbandonedTermination: the end of an abandoned termination restores the node's state, and so the
// instance's, and the termination can start again.
func TestAbandonedTermination(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	id := m.caller.NodeID
	e.abandoned(id, lifecycle.ActionTerminate)
	_, err := e.AcceptAbandoned(ctx, id, "terminated by mistake", rehydrator)
	require.NoError(t, err)
	require.Equal(t, lifecycle.NodeActive, e.node(id).State)
	require.Equal(t, lifecycle.InstanceRunning, e.node(id).Instance.State)
	m.use()
	c := e.claim(id, lifecycle.ActionTerminate)
	require.Equal(t, lifecycle.NodeActive, c.Prior)
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)))
	require.Equal(t, lifecycle.InstanceTerminated, e.node(id).Instance.State)
}

// TestTerminationEndsAReissue: the token of a reissue is void with the machine that it was for, and a
// new reissue waits for the termination.
func TestTerminationEndsAReissue(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	id := m.caller.NodeID
	reissue, err := e.Claim(ctx, reissueRequest(id))
	require.NoError(t, err)
	tokenID, hash := e.reissued(id)
	c := e.claim(id, lifecycle.ActionTerminate)
	requireKind(t, e.IssueToken(ctx, mint(id, trust.PurposeReissue), operator), schema.KindInvalidRequest, "invalid_state")
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)))
	ended, err := e.Operation(ctx, reissue.Fence.OperationID)
	require.NoError(t, err)
	require.Equal(t, lifecycle.OperationFailed, ended.Operation.Status)
	require.Contains(t, ended.Operation.Outcome, "the machine of the node is gone")
	_, err = e.ClaimToken(ctx, tokenClaim(id, tokenID, hash, m.k(2)))
	require.Error(t, err)
	require.Equal(t, int64(2), e.node(id).Incarnation)
}
