package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestFencedOperationWritesNothing(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	id := caller.NodeID
	old := e.claim(id, lifecycle.ActionProvision).Fence
	resource := activities.Resource{ResourceID: lifecycle.ResourceID(old.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := e.Store.Operations.Plan(ctx, old, resource)
	require.NoError(t, err)
	drain := e.claim(id, lifecycle.ActionDrain).Fence

	before, rows := e.node(id), e.audit(id)
	forged := old
	forged.OpSeq++ // the number of the newer operation, but not its id
	for name, write := range map[string]func(f activities.Fence) error{
		"advance": func(f activities.Fence) error {
			return e.Advance(ctx, f, activities.Advance{Phase: "ready",
				Instance: lifecycle.InstanceRunning, FactsTask: "facts"})
		},
		"finish": func(f activities.Fence) error {
			return e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeActive, DenyIdentity: true})
		},
		"prepare": func(f activities.Fence) error {
			_, err := e.Prepare(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"))
			return err
		},
		"enqueue": func(f activities.Fence) error {
			row := activities.TaskRow{TaskID: schema.NewID(), Seq: 1, Incarnation: 1}
			return e.Enqueue(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"), row, []byte("{}"))
		},
		"void":     func(f activities.Fence) error { return e.Void(ctx, f) },
		"plan":     func(f activities.Fence) error { _, err := e.Store.Operations.Plan(ctx, f, resource); return err },
		"open":     func(f activities.Fence) error { _, err := e.Store.Operations.Open(ctx, f); return err },
		"released": func(f activities.Fence) error { return e.Store.Operations.Released(ctx, f, resource.ResourceID) },
	} {
		requireKind(t, write(old), schema.KindFenced, "")
		requireKind(t, write(forged), schema.KindFenced, "")
		unknown := old
		unknown.NodeID = schema.NewID()
		requireKind(t, write(unknown), schema.KindFenced, "")
		require.Equal(t, before, e.node(id), name)
		require.Equal(t, rows, e.audit(id), name)
	}
	open, err := e.Store.Operations.Open(ctx, drain)
	require.NoError(t, err)
	require.Equal(t, activities.ResourcePlanned, open[0].State)
}

func TestAdvanceTwiceIsOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	provision := e.claim(n.ID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Finish(ctx, provision, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	since := time.Now().UTC()
	stuck := &lifecycle.Stuck{Phase: "drain", Reason: "drain_blocked", Message: "web would not stop",
		WaitingOn: lifecycle.AttentionOperator, Since: since, Next: "gpuaas op force"}
	decision := &lifecycle.ResolveRequest{Decision: lifecycle.DecisionRetry, Reason: "fixed it", By: "bob@ops"}
	advances := []struct {
		a    activities.Advance
		rows []string
	}{
		{activities.Advance{Phase: "cordon"}, nil},
		{activities.Advance{Phase: "drain", Stuck: stuck}, []string{"nodes.drain parked drain_blocked"}},
		{activities.Advance{Phase: "drain", Decision: decision}, []string{"operations.resolve accepted fixed it"}},
		{activities.Advance{Phase: "drain", Stuck: &lifecycle.Stuck{Phase: "drain", Reason: "drain_blocked", Since: since.Add(time.Minute)}},
			[]string{"nodes.drain parked drain_blocked"}},
		{activities.Advance{Phase: "drain", Decision: decision}, []string{"operations.resolve accepted fixed it"}},
		{activities.Advance{Phase: "drained", Instance: lifecycle.InstanceTerminating}, []string{"instances.state_changed succeeded"}},
	}
	for i, step := range advances {
		step.a.Step = int64(i + 1)
		for _, want := range [][]string{step.rows, nil, nil} {
			rows := e.changes(n.ID, func() { require.NoError(t, e.Advance(ctx, f, step.a)) })
			require.Equal(t, append([]string{}, want...), append([]string{}, rows...), "step %d", i)
		}
	}
	after := e.node(n.ID)
	require.Equal(t, lifecycle.InstanceTerminating, after.Instance.State)
	last := e.chain(n.ID)
	require.Equal(t, "bob@ops", last[len(last)-2].Actor)

	late := advances[0].a
	late.Step = 1
	require.NoError(t, e.Advance(ctx, f, late))
	require.Equal(t, "drained", e.node(n.ID).Operation.Phase, "a late repeat of a numbered step undoes nothing")
}

func TestParkedOperationIsListed(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	op := e.node(n.ID).Operation
	require.Equal(t, lifecycle.OperationAccepted, op.Status)
	require.Equal(t, lifecycle.AttentionNone, op.WaitingOn)
	stuck := lifecycle.Stuck{Phase: "drain", WaitingOn: lifecycle.AttentionOperator, Reason: "drain_blocked",
		Message: "web would not stop", Since: time.Now().UTC().Truncate(time.Microsecond), Cause: "docker", Next: "gpuaas op force gpu-1"}
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "drain", Stuck: &stuck}))

	op = e.node(n.ID).Operation
	require.Equal(t, lifecycle.OperationParked, op.Status)
	require.Equal(t, lifecycle.AttentionOperator, op.WaitingOn)
	require.Equal(t, &stuck, op.Stuck)
	counts, err := e.StuckCounts(ctx)
	require.NoError(t, err)
	require.Equal(t, []metrics.StuckCount{{Phase: "drain", Reason: "drain_blocked", Operations: 1}}, counts)

	require.NoError(t, e.Advance(ctx, f, activities.Advance{}))
	op = e.node(n.ID).Operation
	require.Equal(t, lifecycle.OperationRunning, op.Status)
	require.Equal(t, "drain", op.Phase, "zero fields change nothing")
	require.Nil(t, op.Stuck)
}

func TestAnOperationNamesTheRunThatWorksOnIt(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	claimed := activities.ClaimRequest{RunID: "first", OperationInput: lifecycle.OperationInput{
		OperationID: schema.NewID(), NodeID: caller.NodeID, Action: lifecycle.ActionDrain, CorrelationID: schema.NewID()}}
	claim, err := e.Claim(ctx, claimed)
	require.NoError(t, err)
	run := func() string {
		ops := e.operations(caller.NodeID, false)
		require.Equal(t, claimed.OperationID, ops[0].OperationID)
		return ops[0].RunID
	}
	f := claim.Fence
	require.NoError(t, e.Operations.Advance(ctx, f, "first", activities.Advance{Phase: "cordon", Step: 2}))
	require.Equal(t, "first", run())
	require.NoError(t, e.Operations.Advance(ctx, f, "second", activities.Advance{Phase: "cordon", Step: 3}))
	require.Equal(t, "second", run())
	require.NoError(t, e.Operations.Advance(ctx, f, "first", activities.Advance{Phase: "cordon", Step: 1}))
	require.Equal(t, "second", run(), "a late write of the run that was reset changes nothing")
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "drain", Step: 4}))
	require.Equal(t, "second", run(), "the run is unknown")

	e.dispatch(f, "drain", task.WorkloadDrain)
	again := task.Owner{WorkflowID: claimed.WorkflowID, RunID: "third", ActivityID: "drain"}
	found := spec(f, "drain", task.WorkloadDrain)
	found.Clock = 5
	_, err = e.Prepare(ctx, found, again)
	require.NoError(t, err)
	require.Equal(t, "third", run(), "the run's activity found its task")
	again.RunID, found.Clock = "second", 3
	_, err = e.Prepare(ctx, found, again)
	require.NoError(t, err)
	require.Equal(t, "third", run(), "an older run's activity is not the newest")

	repeated, err := e.Claim(ctx, claimed)
	require.NoError(t, err, "a run that was reset to its beginning claims by the first run's id")
	require.Equal(t, claim, repeated)
	require.NoError(t, e.Operations.Finish(ctx, f, "fourth", activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained}))
	require.Equal(t, "fourth", run())
}

// TestResetRunIsRecorded: the run before a reset recorded seven advances. The new run
// repeats two of them, parks and is forced: both show, and the force is in the audit once.
// A late write of the run before changes neither the status nor the run.
func TestResetRunIsRecorded(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	clock := time.Now().UnixMicro()
	for i := range int64(7) {
		require.NoError(t, e.Operations.Advance(ctx, f, "first", activities.Advance{Phase: "drain", Step: clock + i}))
	}
	since := time.Now().UTC().Truncate(time.Microsecond)
	stuck := &lifecycle.Stuck{Phase: "drain", Reason: "drain_blocked", WaitingOn: lifecycle.AttentionOperator, Since: since}
	force := &lifecycle.ResolveRequest{ID: "update-1", Decision: lifecycle.DecisionForce, Reason: "it must end", By: "bob@ops"}
	reset := clock + time.Minute.Microseconds()
	park := activities.Advance{Phase: "drain", Step: reset, Stuck: stuck}
	forced := activities.Advance{Phase: "drain", Step: reset + 1, Decision: force}

	require.NoError(t, e.Operations.Advance(ctx, f, "second", park))
	require.Equal(t, lifecycle.OperationParked, e.node(n.ID).Operation.Status)
	rows := e.changes(n.ID, func() {
		require.NoError(t, e.Operations.Advance(ctx, f, "second", forced))
		require.NoError(t, e.Operations.Advance(ctx, f, "second", forced))
		again := forced // the run was reset again, and the update is applied again
		again.Step += time.Minute.Microseconds()
		require.NoError(t, e.Operations.Advance(ctx, f, "third", again))
	})
	require.Equal(t, []string{"operations.resolve accepted it must end"}, rows)

	zombie := activities.Advance{Phase: "cordon", Step: clock + 8, Stuck: stuck}
	require.NoError(t, e.Operations.Advance(ctx, f, "first", zombie))
	op := e.operations(n.ID, false)[0]
	require.Equal(t, lifecycle.OperationRunning, op.Status)
	require.Equal(t, "drain", op.Phase)
	require.Equal(t, "third", op.RunID)
}

// TestLateDecisionIsAudited: a decision whose record was delayed is in the audit, even
// if the operation has recorded more since, or has ended. A decision that is not applied yet
// is rejected once the operation has ended, and is not in the audit.
func TestLateDecisionIsAudited(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "drain", Step: 9}))
	late := func(id string) activities.Advance {
		return activities.Advance{Phase: "cordon", Step: 3, Decision: &lifecycle.ResolveRequest{
			ID: id, Decision: lifecycle.DecisionSkip, Reason: id, By: "bob@ops"}}
	}
	rows := e.changes(n.ID, func() {
		require.NoError(t, e.Advance(ctx, f, late("one")))
		require.NoError(t, e.Advance(ctx, f, late("one")))
	})
	require.Equal(t, []string{"operations.resolve accepted one"}, rows)
	require.Equal(t, "drain", e.node(n.ID).Operation.Phase)
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeDrained}))
	rows = e.changes(n.ID, func() {
		requireKind(t, e.Advance(ctx, f, late("two")), schema.KindFenced, lifecycle.ReasonOperationOver)
	})
	require.Empty(t, rows)
	applied := late("two")
	applied.Applied = true
	rows = e.changes(n.ID, func() { require.NoError(t, e.Advance(ctx, f, applied)) })
	require.Equal(t, []string{"operations.resolve accepted two"}, rows)
}

// TestRepeatedParkIsAuditedOnce: a workflow task that was lost runs again and records its
// phase and its park with newer steps.
func TestRepeatedParkIsAuditedOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	park := func(step int64, id string) {
		since := time.Now().UTC().Truncate(time.Microsecond)
		require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "drain", Step: step}))
		require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "drain", Step: step + 1, ParkID: id,
			Stuck: &lifecycle.Stuck{Phase: "drain", Reason: "drain_blocked", WaitingOn: lifecycle.AttentionOperator, Since: since}}))
		require.Equal(t, lifecycle.OperationParked, e.node(n.ID).Operation.Status)
		require.True(t, since.Equal(e.node(n.ID).Operation.Stuck.Since), "the newest park counts")
	}
	rows := e.changes(n.ID, func() {
		park(1, "run/1")
		park(3, "run/1")
	})
	require.Equal(t, []string{"nodes.drain parked drain_blocked"}, rows)
	rows = e.changes(n.ID, func() { park(5, "run/2") })
	require.Equal(t, []string{"nodes.drain parked drain_blocked"}, rows, "another park of the same phase")
}

// TestQuotaIsOneEvent: an operation that parks because the quota is used up, also after a retry, is one
// event with a name of its own, which operators filter by.
func TestQuotaIsOneEvent(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	const quota = "provider_quota_exceeded"
	stuck := &lifecycle.Stuck{Phase: "adopt", Reason: quota, Message: "0 of 8 GPUs are left", WaitingOn: lifecycle.AttentionOperator, Since: time.Now().UTC()}
	provisioned := func() (wire.NodeView, activities.Claim) {
		n := e.register()
		e.exec("UPDATE nodes SET onboarding_mode = 'libvirt' WHERE node_id = $1", n.ID)
		return n, e.claim(n.ID, lifecycle.ActionProvision)
	}
	n, c := provisioned()
	other, second := provisioned()
	rows := e.changes(n.ID, func() {
		for i, park := range []string{"run/1", "run/1", "run/2"} { // a repeated call, and an operator's retry
			require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "adopt", Step: int64(i + 1), ParkID: park, Stuck: stuck}))
		}
		require.NoError(t, e.Advance(ctx, c.Fence, activities.Advance{Phase: "adopt", Step: 4, ParkID: "run/3",
			Stuck: &lifecycle.Stuck{Phase: "adopt", Reason: "provider_capacity", Since: time.Now().UTC()}}))
	})
	require.Equal(t, []string{"nodes.provision parked " + quota, quota + " refused", "nodes.provision parked " + quota, "nodes.provision parked provider_capacity"}, rows)
	require.NoError(t, e.Advance(ctx, second.Fence, activities.Advance{Phase: "adopt", Step: 1, ParkID: "run/1", Stuck: stuck}))

	events, _, err := e.ListAudit(ctx, adminapi.AuditQuery{Actions: []string{quota}, Page: adminapi.Page{Limit: 10}})
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, []string{other.ID, n.ID}, []string{events[0].Stream, events[1].Stream})
	require.Equal(t, c.Fence.OperationID, events[1].OperationID)
	require.Equal(t, n.Host, events[1].Host)
	require.Equal(t, map[string]string{"provider": "libvirt", "node": n.Host, "phase": "adopt", "message": stuck.Message}, events[1].Detail)
}

func TestFinishTwiceIsOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "adopt", Instance: lifecycle.InstancePending}))
	nodeTask := e.dispatch(f, "facts", task.FactsCollect)
	end := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive, Instance: lifecycle.InstanceRunning, Outcome: "fit for work"}
	rows := e.changes(n.ID, func() {
		for _, err := range race(10, func(int) error { return e.Finish(ctx, f, end) }) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"tasks.finished " + audit.Canceled + " voided", "nodes.provision succeeded"}, rows)
	after := e.node(n.ID)
	require.Nil(t, after.Operation)
	require.Equal(t, lifecycle.InstanceRunning, after.Instance.State)
	ops := e.operations(n.ID, false)
	require.Equal(t, "fit for work", ops[0].Outcome)
	require.NotNil(t, ops[0].EndedAt)

	found, err := e.Prepare(ctx, spec(f, "facts", task.FactsCollect), taskOwner("facts"))
	require.NoError(t, err)
	require.Equal(t, nodeTask.TaskID, found.TaskID)
	require.Equal(t, task.Canceled, found.Result.Status, "who asks for a voided task gets an end, not a wait")
	end.Status = lifecycle.OperationFailed
	requireKind(t, e.Finish(ctx, f, end), schema.KindFenced, "operation_over")
	requireKind(t, e.Advance(ctx, f, activities.Advance{Phase: "adopt"}), schema.KindFenced, "operation_over")
	_, err = e.Prepare(ctx, spec(f, "probe", task.NodeProbe), taskOwner("probe"))
	requireKind(t, err, schema.KindFenced, "operation_over")
	require.NoError(t, e.Void(ctx, f))
}

func TestEndsOnRecord(t *testing.T) {
	e := setup(t)
	for status, row := range map[lifecycle.OperationState]string{
		lifecycle.OperationCompleted: "nodes.drain succeeded",
		lifecycle.OperationCanceled:  "nodes.drain " + audit.Canceled,
		lifecycle.OperationFailed:    "nodes.drain failed",
	} {
		n := e.inState(lifecycle.NodeOffline)
		c := e.claim(n.ID, lifecycle.ActionDrain)
		require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: status, Node: c.Prior}))
		require.Equal(t, lifecycle.NodeOffline, e.node(n.ID).State)
		rows := e.audit(n.ID)
		require.Equal(t, row, rows[len(rows)-1])
		ops := e.operations(n.ID, false)
		require.Equal(t, status, ops[0].Status)
	}
}

func TestFinishRefusesAnEndThatIsNone(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	for _, s := range []lifecycle.OperationState{"", lifecycle.OperationRunning, lifecycle.OperationRejected, "nonsense"} {
		requireKind(t, e.Finish(t.Context(), f, activities.Finish{Status: s}), schema.KindInvalidRequest, "")
	}
	require.Equal(t, lifecycle.NodeDraining, e.node(n.ID).State)
}

func TestRemoveDeniesTheIdentity(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, id, cert := e.enroll()
	f := e.claim(caller.NodeID, lifecycle.ActionProvision).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	f = e.claim(caller.NodeID, lifecycle.ActionRetire).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired}))
	f = e.claim(caller.NodeID, lifecycle.ActionRemove).Fence
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved,
		Instance: lifecycle.InstanceTerminated, DenyIdentity: true, Outcome: "gone"}))

	_, err := e.Authenticate(ctx, id, cert)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	require.Zero(t, e.number("SELECT count(*) FROM node_certificates WHERE slot <> 'retired'"))
	after := e.node(caller.Host)
	require.Equal(t, lifecycle.NodeRemoved, after.State)
	require.Nil(t, after.Identity)
	require.Equal(t, lifecycle.InstanceTerminated, after.Instance.State)
	again := e.register(func(r *wire.RegisterNodeRequest) { r.Host = caller.Host })
	require.Equal(t, again.ID, e.node(caller.Host).ID, "a live node comes before a tombstone of its name")
}

// TestRemoveBeforeEnrollment: a node that never enrolled can be removed. Its token is
// void then, and its host name can be registered again.
func TestRemoveBeforeEnrollment(t *testing.T) {
	e := setup(t)
	n := e.register()
	tokenID, hash := e.token(n.ID)
	f := e.claim(n.ID, lifecycle.ActionRemove).Fence
	plan, _ := lifecycle.PlanOf(lifecycle.ActionRemove, lifecycle.Options{})
	require.NoError(t, e.Finish(t.Context(), f, activities.Finish{Status: lifecycle.OperationCompleted, Node: plan.To,
		Instance: plan.Instance, DenyIdentity: plan.DenyIdentity, Outcome: plan.Outcome}))
	_, err := e.ClaimToken(t.Context(), tokenClaim(n.ID, tokenID, hash, "spki"))
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	again := e.register(func(r *wire.RegisterNodeRequest) { r.Host = n.Host })
	require.Equal(t, again.ID, e.node(n.Host).ID)
}

func TestCanceledEnrollmentVoidsCredentials(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	f := e.claim(n.ID, lifecycle.ActionEnroll).Fence
	tokenID, hash := e.token(n.ID)
	won, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
	require.NoError(t, err)
	id, cert := certificate(n.ID, won.Incarnation, "spki-1")
	require.NoError(t, e.storePending(n.ID, won.Incarnation, tokenID, cert))
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, VoidTokens: true}))

	_, err = e.Authenticate(ctx, id, cert)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	_, err = e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	progress, err := e.Enrollment(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, activities.Enrollment{Incarnation: 1}, progress)
}

// TestNoteStored: a cancel that Temporal stored is in the audit with its subject and
// reason, once.
func TestNoteStored(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(lifecycle.NodeActive)
	f := e.claim(n.ID, lifecycle.ActionDrain).Fence
	r := lifecycle.ResolveRequest{ID: schema.NewID(), OperationID: f.OperationID, Decision: lifecycle.DecisionCancel, Reason: "wrong node", By: "bob@ops", Via: "api"}
	require.Equal(t, []string{"operations.resolve accepted wrong node"}, e.changes(n.ID, func() {
		for range 2 {
			require.NoError(t, e.NoteStored(ctx, r, "corr-7"))
		}
	}))
	chain := e.chain(n.ID)
	last := chain[len(chain)-1]
	require.Equal(t, []string{"bob@ops", "api", f.OperationID, f.OperationID, "corr-7"},
		[]string{last.Actor, last.Via, last.Target, last.OperationID, last.CorrelationID})
	require.Equal(t, map[string]string{"decision": "cancel", "decision_id": r.ID}, last.Detail)
	for _, unknown := range []string{schema.NewID(), "op-1"} {
		r.OperationID = unknown
		requireKind(t, e.NoteStored(ctx, r, ""), schema.KindNotFound, "")
	}
}

func TestReadsOfRecords(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	age, err := e.HeartbeatAge(ctx, n.ID)
	require.NoError(t, err)
	require.Negative(t, age)
	for _, id := range []string{schema.NewID(), "nonsense"} {
		_, err = e.HeartbeatAge(ctx, id)
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Enrollment(ctx, id)
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Store.Operations.Open(ctx, activities.Fence{NodeID: id, OpSeq: 1})
		requireKind(t, err, schema.KindFenced, "")
	}
}

// TestWritesWithoutRecord: the database was restored to a time before the operation claimed
// its node, or before the node was registered. Every write of the operation is fenced.
func TestWritesWithoutRecord(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	for name, id := range map[string]string{"no operation": e.inState(lifecycle.NodeActive).ID, "no node": schema.NewID()} {
		f := activities.Fence{NodeID: id, OperationID: schema.NewID(), OpSeq: 1}
		s := spec(f, "drain", task.WorkloadDrain)
		writes := map[string]error{
			"advance": e.Advance(ctx, f, activities.Advance{Phase: "drain"}),
			"finish":  e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted}),
			"void":    e.Void(ctx, f),
			"created": e.Created(ctx, f, schema.NewID(), "i-1"),
			"enqueue": e.Enqueue(ctx, s, taskOwner("drain"), activities.TaskRow{TaskID: schema.NewID(), Seq: 1, Type: s.Type}, []byte("x")),
		}
		_, writes["prepare"] = e.Prepare(ctx, s, taskOwner("drain"))
		_, writes["plan"] = e.Plan(ctx, f, activities.Resource{ResourceID: schema.NewID(), Kind: "instance", Provider: "dev"})
		for write, err := range writes {
			require.Equal(t, schema.KindFenced, schema.KindOf(err), "%s, %s: %v", name, write, err)
		}
	}
}
