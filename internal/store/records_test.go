package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestAZombieOfAnOlderOperationWritesNothing(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	id := caller.NodeID
	old := e.claim(id, schema.ActionProvision).Fence
	resource := schema.Resource{ResourceID: schema.ResourceID(old.OperationID, "instance"), Kind: "instance", Provider: "manual"}
	_, err := e.Ledger().Plan(ctx, old, resource)
	require.NoError(t, err)
	e.claim(id, schema.ActionDrain)

	before, rows := e.node(id), e.audit(id)
	yes := true
	forged := old
	forged.OpSeq++ // the number of the newer operation, but not its id
	for name, write := range map[string]func(f schema.Fence) error{
		"advance": func(f schema.Fence) error {
			return e.Advance(ctx, f, schema.Advance{Phase: "ready", Node: schema.NodeActive, Cordoned: &yes,
				Instance: schema.InstanceRunning, Facts: &schema.Facts{CPUs: 1}})
		},
		"finish": func(f schema.Fence) error {
			return e.Finish(ctx, f, schema.Finish{Status: schema.OperationCancelled, Node: schema.NodeActive, DenyIdentity: true})
		},
		"prepare": func(f schema.Fence) error {
			_, err := e.Prepare(ctx, spec(f, "facts", schema.TaskFactsCollect), taskOwner("facts"))
			return err
		},
		"enqueue": func(f schema.Fence) error {
			row := schema.TaskRow{TaskID: schema.NewID(), Seq: 1, Incarnation: 1}
			return e.Enqueue(ctx, spec(f, "facts", schema.TaskFactsCollect), taskOwner("facts"), row, []byte("{}"))
		},
		"void":     func(f schema.Fence) error { return e.Void(ctx, f) },
		"plan":     func(f schema.Fence) error { _, err := e.Ledger().Plan(ctx, f, resource); return err },
		"created":  func(f schema.Fence) error { return e.Ledger().Created(ctx, f, resource.ResourceID, "m-1") },
		"released": func(f schema.Fence) error { return e.Ledger().Released(ctx, f, resource.ResourceID) },
	} {
		requireKind(t, write(old), schema.KindFenced, "")
		requireKind(t, write(forged), schema.KindFenced, "")
		unknown := old
		unknown.NodeID = schema.NewID()
		requireKind(t, write(unknown), schema.KindNotFound, "")
		require.Equal(t, before, e.node(id), name)
		require.Equal(t, rows, e.audit(id), name)
	}
	open, err := e.Ledger().Open(ctx, id)
	require.NoError(t, err)
	require.Equal(t, schema.ResourcePlanned, open[0].State)
}

func TestAdvanceTwiceIsOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionDrain).Fence
	yes := true
	since := time.Now().UTC()
	stuck := &schema.Stuck{Phase: "drain", Reason: "drain_blocked", Message: "web would not stop",
		Attention: schema.AttentionOperator, Since: since, Next: "gpuaas op force"}
	decision := &schema.ResolveRequest{Decision: schema.DecisionRetry, Reason: "fixed it", By: "bob@ops"}
	advances := []struct {
		a    schema.Advance
		rows []string
	}{
		{schema.Advance{Phase: "cordon"}, nil},
		{schema.Advance{Phase: "drain", Cordoned: &yes}, []string{"nodes.state_changed succeeded"}},
		{schema.Advance{Phase: "drain", Stuck: stuck}, []string{"nodes.drain parked drain_blocked"}},
		{schema.Advance{Phase: "drain", Decision: decision}, []string{"operations.resolve accepted fixed it"}},
		{schema.Advance{Phase: "drain", Stuck: &schema.Stuck{Phase: "drain", Reason: "drain_blocked", Since: since.Add(time.Minute)}},
			[]string{"nodes.drain parked drain_blocked"}},
		{schema.Advance{Phase: "drain", Decision: decision}, []string{"operations.resolve accepted fixed it"}},
		{schema.Advance{Phase: "drained", Node: schema.NodeDrained, Instance: schema.InstanceDraining},
			[]string{"nodes.state_changed succeeded", "instances.state_changed succeeded"}},
	}
	for _, numbered := range []bool{false, true} {
		if numbered {
			e.exec("UPDATE nodes SET state = 'active', cordoned = false WHERE node_id = $1", n.ID)
			e.exec("DELETE FROM instances")
			f = e.claim(n.ID, schema.ActionDrain).Fence
		}
		for i, step := range advances {
			if numbered {
				step.a.Step = int64(i + 1)
			}
			for _, want := range [][]string{step.rows, nil, nil} {
				rows := e.changes(n.ID, func() { require.NoError(t, e.Advance(ctx, f, step.a)) })
				require.Equal(t, append([]string{}, want...), append([]string{}, rows...), "step %d, numbered %v", i, numbered)
			}
		}
	}
	after := e.node(n.ID)
	require.Equal(t, schema.NodeDrained, after.State)
	require.True(t, after.Cordoned)
	require.Equal(t, schema.InstanceDraining, after.Instance.State)
	last := e.chain(n.ID)
	require.Equal(t, "bob@ops", last[len(last)-3].Actor)

	late := advances[0].a
	late.Step = 1
	require.NoError(t, e.Advance(ctx, f, late))
	require.Equal(t, "drained", e.node(n.ID).Operation.Phase, "a late repeat of a numbered step undoes nothing")
}

func TestAParkedOperationShows(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionDrain).Fence
	op := e.node(n.ID).Operation
	require.Equal(t, schema.OperationAccepted, op.Status)
	require.Equal(t, schema.AttentionNone, op.Attention)
	stuck := schema.Stuck{Phase: "drain", Attention: schema.AttentionOperator, Reason: "drain_blocked",
		Message: "web would not stop", Since: time.Now().UTC().Truncate(time.Microsecond), Cause: "docker", Next: "gpuaas op force gpu-1"}
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "drain", Stuck: &stuck}))

	op = e.node(n.ID).Operation
	require.Equal(t, schema.OperationParked, op.Status)
	require.Equal(t, schema.AttentionOperator, op.Attention)
	require.Equal(t, &stuck, op.Stuck)
	counts, err := e.StuckCounts(ctx)
	require.NoError(t, err)
	require.Equal(t, []schema.StuckCount{{Phase: "drain", Reason: "drain_blocked", Operations: 1}}, counts)

	require.NoError(t, e.Advance(ctx, f, schema.Advance{}))
	op = e.node(n.ID).Operation
	require.Equal(t, schema.OperationRunning, op.Status)
	require.Equal(t, "drain", op.Phase, "zero fields leave what stands")
	require.Nil(t, op.Stuck)
}

func TestAnOperationNamesTheRunThatWorksOnIt(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	claimed := schema.ClaimRequest{OperationID: schema.NewID(), NodeID: caller.NodeID, Action: schema.ActionDrain,
		WorkflowID: schema.NodeWorkflowID(caller.NodeID), RunID: "first", CorrelationID: schema.NewID()}
	claim, err := e.Claim(ctx, claimed)
	require.NoError(t, err)
	run := func() string {
		ops, err := e.Operations(ctx, caller.NodeID, false)
		require.NoError(t, err)
		require.Equal(t, claimed.OperationID, ops[0].OperationID)
		return ops[0].RunID
	}
	f := claim.Fence
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "cordon", Step: 2, RunID: "first"}))
	require.Equal(t, "first", run())
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "claim", Step: 1, RunID: "second"}))
	require.Equal(t, "second", run(), "a step that is on record already comes from the run that was reset to before it")
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "drain", Step: 3}))
	require.Equal(t, "second", run(), "nobody said who")

	e.dispatch(f, "drain", schema.TaskWorkloadDrain)
	again := schema.TaskOwner{WorkflowID: claimed.WorkflowID, RunID: "third", ActivityID: "drain"}
	_, err = e.Prepare(ctx, spec(f, "drain", schema.TaskWorkloadDrain), again)
	require.NoError(t, err)
	require.Equal(t, "third", run(), "the run's activity found its task")

	repeated, err := e.Claim(ctx, claimed)
	require.NoError(t, err, "a run that was reset to its beginning claims by the first run's id")
	require.Equal(t, claim, repeated)
	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeDrained, RunID: "fourth"}))
	require.Equal(t, "fourth", run())
}

func TestFinishTwiceIsOnce(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionProvision).Fence
	require.NoError(t, e.Advance(ctx, f, schema.Advance{Phase: "adopt", Instance: schema.InstancePending}))
	task := e.dispatch(f, "facts", schema.TaskFactsCollect)
	end := schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeActive, Instance: schema.InstanceRunning, Outcome: "fit for work"}
	rows := e.changes(n.ID, func() {
		for _, err := range race(10, func(int) error { return e.Finish(ctx, f, end) }) {
			require.NoError(t, err)
		}
	})
	require.Equal(t, []string{"tasks.finished cancelled voided", "nodes.provision succeeded"}, rows)
	after := e.node(n.ID)
	require.Nil(t, after.Operation)
	require.Equal(t, schema.InstanceRunning, after.Instance.State)
	ops, err := e.Operations(ctx, n.ID, false)
	require.NoError(t, err)
	require.Equal(t, "fit for work", ops[0].Outcome)
	require.NotNil(t, ops[0].EndedAt)

	found, err := e.Prepare(ctx, spec(f, "facts", schema.TaskFactsCollect), taskOwner("facts"))
	require.NoError(t, err)
	require.Equal(t, task.TaskID, found.TaskID)
	require.Equal(t, schema.TaskCancelled, found.Result.Status, "who asks for a voided task gets an end, not a wait")
	end.Status = schema.OperationFailed
	requireKind(t, e.Finish(ctx, f, end), schema.KindFenced, "operation_over")
	requireKind(t, e.Advance(ctx, f, schema.Advance{Phase: "adopt"}), schema.KindFenced, "operation_over")
	_, err = e.Prepare(ctx, spec(f, "probe", schema.TaskNodeProbe), taskOwner("probe"))
	requireKind(t, err, schema.KindFenced, "operation_over")
	require.NoError(t, e.Void(ctx, f))
}

func TestEndsOnRecord(t *testing.T) {
	e := setup(t)
	for status, row := range map[schema.OperationState]string{
		schema.OperationCompleted: "nodes.drain succeeded",
		schema.OperationCancelled: "nodes.drain cancelled",
		schema.OperationFailed:    "nodes.drain failed",
	} {
		n := e.inState(schema.NodeOffline)
		c := e.claim(n.ID, schema.ActionDrain)
		require.NoError(t, e.Finish(t.Context(), c.Fence, schema.Finish{Status: status, Node: c.Prior}))
		require.Equal(t, schema.NodeOffline, e.node(n.ID).State)
		rows := e.audit(n.ID)
		require.Equal(t, row, rows[len(rows)-1])
		ops, err := e.Operations(t.Context(), n.ID, false)
		require.NoError(t, err)
		require.Equal(t, status, ops[0].Status)
	}
}

func TestFinishRefusesAnEndThatIsNone(t *testing.T) {
	e := setup(t)
	n := e.inState(schema.NodeActive)
	f := e.claim(n.ID, schema.ActionDrain).Fence
	for _, s := range []schema.OperationState{"", schema.OperationRunning, schema.OperationRejected, "nonsense"} {
		requireKind(t, e.Finish(t.Context(), f, schema.Finish{Status: s}), schema.KindInvalidRequest, "")
	}
	requireKind(t, e.Advance(t.Context(), f, schema.Advance{Node: "nonsense"}), schema.KindInvalidRequest, "nodes_state_check")
	require.Equal(t, schema.NodeDraining, e.node(n.ID).State)
}

func TestRemoveDeniesTheIdentity(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, id, cert := e.enroll()
	f := e.claim(caller.NodeID, schema.ActionProvision).Fence
	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCompleted, Instance: schema.InstanceRunning}))
	f = e.claim(caller.NodeID, schema.ActionRetire).Fence
	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeRetired}))
	f = e.claim(caller.NodeID, schema.ActionRemove).Fence
	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCompleted, Node: schema.NodeRemoved,
		Instance: schema.InstanceTerminated, DenyIdentity: true, Outcome: "gone"}))

	_, err := e.Authenticate(ctx, id, cert)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	require.Zero(t, e.number("SELECT count(*) FROM node_certificates WHERE slot <> 'retired'"))
	after := e.node(caller.Host)
	require.Equal(t, schema.NodeRemoved, after.State)
	require.Nil(t, after.Identity)
	require.Equal(t, schema.InstanceTerminated, after.Instance.State)
	again := e.register(func(r *schema.RegisterNodeRequest) { r.Host = caller.Host })
	require.Equal(t, again.ID, e.node(caller.Host).ID, "a live node comes before a tombstone of its name")
}

func TestACancelledEnrolmentLeavesNothingToUse(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	f := e.claim(n.ID, schema.ActionEnroll).Fence
	tokenID, hash := e.token(n.ID)
	won, err := e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
	require.NoError(t, err)
	id, cert := certificate(n.ID, won.Incarnation, "spki-1")
	require.NoError(t, e.storePending(n.ID, won.Incarnation, tokenID, cert))
	require.NoError(t, e.Finish(ctx, f, schema.Finish{Status: schema.OperationCancelled, Node: schema.NodeRegistered, VoidTokens: true}))

	_, err = e.Authenticate(ctx, id, cert)
	requireKind(t, err, schema.KindInvalidNodeIdentity, schema.ReasonSerialSuperseded)
	_, err = e.ClaimToken(ctx, tokenClaim(n.ID, tokenID, hash, "spki-1"))
	requireKind(t, err, schema.KindTokenConsumed, "token_voided")
	progress, err := e.Enrollment(ctx, n.ID)
	require.NoError(t, err)
	require.Equal(t, schema.EnrollmentProgress{Incarnation: 1}, progress)
}

func TestReadsOfRecords(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	last, err := e.LastHeartbeat(ctx, n.ID)
	require.NoError(t, err)
	require.Zero(t, last)
	for _, id := range []string{schema.NewID(), "nonsense"} {
		_, err = e.LastHeartbeat(ctx, id)
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Enrollment(ctx, id)
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Ledger().Open(ctx, id)
		if id == "nonsense" {
			requireKind(t, err, schema.KindNotFound, "")
		}
	}
}
