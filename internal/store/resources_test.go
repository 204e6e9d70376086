package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestLedger(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l := e.Store.Operations
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	r := activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "instance"), NodeID: n.ID, Kind: "instance", Provider: "manual"}
	planned := r
	planned.State = activities.ResourcePlanned
	rows := e.changes(n.ID, func() {
		for _, err := range race(10, func(int) error {
			stands, err := l.Plan(ctx, f, r)
			if err == nil {
				require.Equal(t, planned, stands)
			}
			return err
		}) {
			require.NoError(t, err)
		}
		require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "adopt", Instance: lifecycle.InstanceProvisioning}))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
		requireKind(t, l.Created(ctx, f, r.ResourceID, "machine-2"), schema.KindInvalidRequest, "resource_mismatch")
		requireKind(t, l.Created(ctx, f, schema.NewID(), "machine-2"), schema.KindNotFound, "")
	})
	require.Equal(t, []string{"resources.planned succeeded", "instances.state_changed succeeded", "resources.created succeeded"}, rows)
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)
	stands, err := l.Plan(ctx, f, r)
	require.NoError(t, err)
	require.Equal(t, activities.ResourceCreated, stands.State, "planning again finds what was made")
	disk, err := l.Plan(ctx, f, activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "disk"), Kind: "disk", Provider: "manual"})
	require.NoError(t, err)
	open, err := l.Open(ctx, f)
	require.NoError(t, err)
	stands.Host, disk.Host = n.Host, n.Host
	require.Equal(t, []activities.Resource{stands, disk}, open)

	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired, Instance: lifecycle.InstanceTerminated}))
	remove := e.claim(n.ID, lifecycle.ActionRemove).Fence
	rows = e.changes(n.ID, func() {
		require.NoError(t, l.Released(ctx, remove, r.ResourceID))
		require.NoError(t, l.Released(ctx, remove, r.ResourceID))
	})
	require.Equal(t, []string{"resources.released succeeded"}, rows)
	open, err = l.Open(ctx, remove)
	require.NoError(t, err)
	require.Equal(t, []activities.Resource{disk}, open)
	rows = e.changes(n.ID, func() {
		requireKind(t, l.Created(ctx, remove, r.ResourceID, "machine-2"), schema.KindFenced, "")
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-2"))
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-2"))
	})
	require.Equal(t, []string{"resources.created succeeded operation_over"}, rows)
	open, err = l.Open(ctx, remove)
	require.NoError(t, err)
	r.State, r.ExternalID, r.Host = activities.ResourceCreated, "machine-2", n.Host
	require.ElementsMatch(t, []activities.Resource{disk, r}, open, "a machine that appeared after the release is open again")
}

// TestLedgerIsFenced: an operator may reset the run of an operation that ended, or whose
// node another operation holds. It neither plans nor releases a machine, and a machine that
// it had asked for is recorded.
func TestLedgerIsFenced(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l := e.Store.Operations
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	r := activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := l.Plan(ctx, f, r)
	require.NoError(t, err)
	fenced := func(reason string) {
		t.Helper()
		require.Empty(t, e.changes(n.ID, func() {
			_, err := l.Plan(ctx, f, r)
			requireKind(t, err, schema.KindFenced, reason)
			_, err = l.Plan(ctx, f, activities.Resource{ResourceID: schema.NewID(), Kind: "instance", Provider: "manual"})
			requireKind(t, err, schema.KindFenced, reason)
			_, err = l.Open(ctx, f)
			requireKind(t, err, schema.KindFenced, reason)
			requireKind(t, l.Released(ctx, f, r.ResourceID), schema.KindFenced, reason)
			requireKind(t, l.Created(ctx, f, schema.NewID(), "machine-1"), schema.KindNotFound, "")
		}))
	}
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeActive}))
	fenced("operation_over")
	provision := e.claim(n.ID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Advance(ctx, provision, activities.Advance{Phase: "adopt", Instance: lifecycle.InstancePending}))
	fenced("")
	forged := f
	forged.OpSeq = provision.OpSeq
	requireKind(t, l.Created(ctx, forged, r.ResourceID, "machine-1"), schema.KindFenced, "")
	require.Equal(t, []string{"resources.created succeeded operation_over"}, e.changes(n.ID, func() {
		require.NoError(t, l.Created(ctx, f, r.ResourceID, "machine-1"))
	}))
	require.Empty(t, e.node(n.ID).Instance.ExternalID, "it is not the machine of the operation that holds the node")
	open, err := l.Open(ctx, provision)
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.Equal(t, "machine-1", open[0].ExternalID)
	reissue := activities.Fence{NodeID: n.ID, OperationID: e.claim(n.ID, lifecycle.ActionReissueEnrollment).Fence.OperationID}
	_, err = l.Open(ctx, reissue)
	requireKind(t, err, schema.KindFenced, "")
}

// TestSecondProvisioning: a provisioning of an instance that an earlier one left, with an entry
// in the ledger, records the machine. So does the earlier one, whose call of the provider may end
// last.
func TestSecondProvisioning(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	l := e.Store.Operations
	n := e.register(func(r *wire.RegisterNodeRequest) { r.OnboardingMode = "libvirt" })
	claim := func() (activities.Fence, activities.Resource) {
		c := e.claim(n.ID, lifecycle.ActionProvision)
		r, err := l.Plan(ctx, c.Fence, activities.Resource{ResourceID: c.Instance.InstanceID, Kind: "instance", Provider: "libvirt"})
		require.NoError(t, err)
		return c.Fence, r
	}
	first, planned := claim()
	second, r := claim()
	require.Equal(t, planned, r, "the instance is the same")
	require.NoError(t, l.Created(ctx, second, r.ResourceID, "machine-1"))
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)
	require.NoError(t, l.Released(ctx, second, r.ResourceID))
	require.NoError(t, l.Created(ctx, first, r.ResourceID, "machine-1"))
	open, err := l.Open(ctx, second)
	require.NoError(t, err)
	require.Len(t, open, 1, "a machine that appeared after the release is open again")
}

func TestInstanceTakesExternalIDOfLedger(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	r := activities.Resource{ResourceID: lifecycle.ResourceID(f.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := e.Store.Operations.Plan(ctx, f, r)
	require.NoError(t, err)
	require.NoError(t, e.Store.Operations.Created(ctx, f, r.ResourceID, "machine-1"))
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceBootstrapping}))
	require.Equal(t, "machine-1", e.node(n.ID).Instance.ExternalID)

	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceTerminated}))
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceTerminated}))
	requireKind(t, e.Advance(ctx, f, activities.Advance{Instance: lifecycle.InstanceRunning}), schema.KindInvalidRequest, "instance_state")
	require.Equal(t, lifecycle.InstanceTerminated, e.node(n.ID).Instance.State, "a terminated instance stays terminated")
}

func TestInstanceBeginsWithTheClaim(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	first := e.claim(n.ID, lifecycle.ActionProvision)
	require.NotEmpty(t, first.Instance.InstanceID)
	require.Equal(t, lifecycle.InstancePending, e.node(n.ID).Instance.State)
	require.NoError(t, e.Advance(t.Context(), first.Fence, activities.Advance{Instance: lifecycle.InstanceProvisioning}))

	again := e.claim(n.ID, lifecycle.ActionProvision)
	require.Equal(t, first.Instance.InstanceID, again.Instance.InstanceID, "the machine of the first run may exist")
	require.Equal(t, lifecycle.InstancePending, e.node(n.ID).Instance.State)
	require.NoError(t, e.Finish(t.Context(), again.Fence, activities.Finish{Status: lifecycle.OperationCanceled, Instance: lifecycle.InstanceTerminated}))
	require.NotEqual(t, first.Instance.InstanceID, e.claim(n.ID, lifecycle.ActionProvision).Instance.InstanceID)
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM instances WHERE node_id = $1", n.ID))
}

// TestMachineThatIsCreated: a provisioning that creates the machine also enrolls it. It completes
// only after a poll with the certificate, and the identity ends with a returned machine.
func TestMachineThatIsCreated(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	provisioned := func() (m *machine, f activities.Fence, poll func()) {
		n := e.register()
		e.exec("UPDATE nodes SET onboarding_mode = 'libvirt' WHERE node_id = $1", n.ID)
		c := e.claim(n.ID, lifecycle.ActionProvision)
		require.True(t, c.Creates)
		m = &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID, Incarnation: 1, Host: n.Host}}
		return m, c.Fence, func() {
			tokenID, hash := e.token(n.ID)
			m.enroll(tokenID, hash, key(n.ID, 1))
		}
	}
	done := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning}
	m, f, poll := provisioned()
	requireKind(t, e.Finish(ctx, f, done), schema.KindInvalidRequest, "not_enrolled")
	poll()
	require.Contains(t, e.events(m.caller.NodeID), lifecycle.EventFirstPoll, "the provisioning waits for it")
	require.NoError(t, e.Finish(ctx, f, done))
	m.use()

	m, f, poll = provisioned()
	poll()
	err := e.IssueToken(ctx, trust.MintedToken{NodeID: m.caller.NodeID, TokenID: schema.NewID(), Hash: make([]byte, 32), Purpose: trust.PurposeEnroll,
		ExpiresAt: time.Now().Add(time.Hour)}, operator)
	requireKind(t, err, schema.KindInvalidRequest, "already_enrolled")
	held := m.held()
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated}))
	_, err = e.Authenticate(ctx, held.id, held.cert)
	require.Equal(t, schema.KindInvalidNodeIdentity, schema.KindOf(err), "%v", err)
	progress, err := e.Enrollment(ctx, m.caller.NodeID)
	require.NoError(t, err)
	require.Equal(t, activities.Enrollment{Incarnation: 2}, progress, "the next machine has not enrolled")
}

// TestInstanceFollowsTheNode: the instance of a node out of service is not running.
func TestInstanceFollowsTheNode(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	end := func(a lifecycle.Action, f activities.Finish, during, after lifecycle.InstanceState) {
		t.Helper()
		c := e.claim(n.ID, a)
		require.Equal(t, during, e.node(n.ID).Instance.State, "%s is accepted", a)
		require.NoError(t, e.Finish(t.Context(), c.Fence, f))
		require.Equal(t, after, e.node(n.ID).Instance.State, "%s ended as %s", a, f.Status)
	}
	done, canceled := lifecycle.OperationCompleted, lifecycle.OperationCanceled
	end(lifecycle.ActionProvision, activities.Finish{Status: done, Instance: lifecycle.InstanceRunning}, lifecycle.InstancePending, lifecycle.InstanceRunning)
	end(lifecycle.ActionDrain, activities.Finish{Status: canceled, Node: lifecycle.NodeActive}, lifecycle.InstanceDraining, lifecycle.InstanceRunning)
	end(lifecycle.ActionDrain, activities.Finish{Status: done, Node: lifecycle.NodeDrained}, lifecycle.InstanceDraining, lifecycle.InstanceDraining)
	end(lifecycle.ActionReactivate, activities.Finish{Status: done, Node: lifecycle.NodeActive}, lifecycle.InstanceDraining, lifecycle.InstanceRunning)
	end(lifecycle.ActionRetire, activities.Finish{Status: done, Node: lifecycle.NodeRetired}, lifecycle.InstanceRunning, lifecycle.InstanceDraining)
	end(lifecycle.ActionRemove, activities.Finish{Status: canceled, Node: lifecycle.NodeRetired}, lifecycle.InstanceTerminating, lifecycle.InstanceDraining)
	end(lifecycle.ActionRemove, activities.Finish{Status: done, Node: lifecycle.NodeRemoved, Instance: lifecycle.InstanceTerminated, DenyIdentity: true},
		lifecycle.InstanceTerminating, lifecycle.InstanceTerminated)
}
