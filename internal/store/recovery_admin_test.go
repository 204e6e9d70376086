package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// setPolicy stores the default policy with a change.
func (e *env) setPolicy(change func(*recovery.Policy)) record.Policy {
	e.t.Helper()
	p, err := e.Recovery.ChangePolicy(e.t.Context(), func(now record.Policy) (recovery.Policy, error) {
		p, err := now.Decode()
		change(&p)
		return p, err
	}, "CHG-7", operator)
	require.NoError(e.t, err)
	return p
}

// arm stores an armed policy that repairs at once.
func (e *env) arm() record.Policy {
	return e.setPolicy(func(p *recovery.Policy) { p.Mode = recovery.ModeArmed })
}

// stored decides with the stored policy, as the activity does.
func stored(p record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
	policy, err := p.Decode()
	return recovery.Decide(policy, f), policy.Mode, err
}

// TestPolicyVersions: each change is a version with its audit row, and the same policy is stored once.
func TestPolicyVersions(t *testing.T) {
	e := setup(t)
	p, err := e.Recovery.Policy(t.Context())
	require.NoError(t, err)
	require.Zero(t, p.Version)
	require.Equal(t, recovery.ModeMonitor, p.Mode)
	rows := e.changes("system", func() {
		for range 2 {
			require.EqualValues(t, 1, e.arm().Version)
		}
		require.EqualValues(t, 2, e.setPolicy(func(p *recovery.Policy) { p.Samples = 9 }).Version)
	})
	require.Equal(t, []string{"recovery.policy_set succeeded CHG-7", "recovery.policy_set succeeded CHG-7"}, rows)
	p, err = e.Recovery.Policy(t.Context())
	require.NoError(t, err)
	policy, err := p.Decode()
	require.NoError(t, err)
	require.Equal(t, []any{9, recovery.ModeArmed, policy.Digest()}, []any{policy.Samples, policy.Mode, p.Digest})
	list, next, err := e.Recovery.ListPolicies(t.Context(), adminapi.Page{Limit: 1})
	require.NoError(t, err)
	require.EqualValues(t, 2, list[0].Version)
	require.Empty(t, list[0].Body)
	list, next, err = e.Recovery.ListPolicies(t.Context(), adminapi.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.EqualValues(t, 1, list[0].Version)
	require.Equal(t, []string{"alice@ops", "CHG-7"}, []string{list[0].Actor, list[0].Reason})
}

// TestConcurrentPolicies: changes at once are one version each.
func TestConcurrentPolicies(t *testing.T) {
	e := setup(t)
	for _, err := range race(6, func(i int) error {
		_, err := e.Recovery.ChangePolicy(t.Context(), func(record.Policy) (recovery.Policy, error) {
			p := recovery.Default()
			p.Samples = 10 + i
			return p, nil
		}, "r", operator)
		return err
	}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, 6, e.number("SELECT count(DISTINCT version) FROM recovery_policies"))
}

// TestUnreadablePolicy: a stored policy that this program cannot read stops the round, and nothing
// is repaired.
func TestUnreadablePolicy(t *testing.T) {
	e := setup(t)
	e.faulty()
	e.arm()
	e.exec(`UPDATE recovery_policies SET body = body || '{"quantum": true}'`)
	_, err := e.Recovery.Round(t.Context(), stored)
	requireKind(t, err, schema.KindInternal, "policy_unreadable")
	require.EqualValues(t, 0, e.number("SELECT count(*) FROM budget_reservations"))
}

// TestStoredPolicyDecides: in monitor mode a round records what it would do; armed, it reserves; with
// a budget of 0 nothing starts, and gpuaas stuck says why.
func TestStoredPolicyDecides(t *testing.T) {
	e := setup(t)
	for range 12 { // the budgets of a smaller fleet are 0
		e.inState(lifecycle.NodeActive)
	}
	n := e.faulty()
	e.exec(`UPDATE recovery_policies SET body = '{"mode": "monitor"}'`)
	e.exec("UPDATE nodes SET gpus_total = 8")
	r := e.round(stored)
	require.Empty(t, r.Starts)
	require.Equal(t, []any{recovery.RungReboot, recovery.ModeMonitor}, []any{r.Decisions[0].Rung, r.Decisions[0].Mode})
	require.NotEmpty(t, r.Decisions[0].Brake)

	e.setPolicy(func(p *recovery.Policy) {
		p.Mode, p.Budgets = recovery.ModeArmed, []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 0, Percent: 50}}
	})
	r = e.round(stored)
	require.Empty(t, r.Starts)
	require.Equal(t, recovery.BrakeBudget, r.Decisions[0].Brake)
	faults, err := e.Faults(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"health-recovery", "budget", "gpuaas recovery status"}, []string{faults[0].Component, faults[0].Reason, faults[0].Next})
	require.Contains(t, faults[0].Message, n.Host)

	e.setPolicy(func(p *recovery.Policy) { p.Budgets[0].Count = 1 })
	r = e.round(stored)
	require.Len(t, r.Starts, 1)
	require.Equal(t, recovery.RungReboot, r.Starts[0].Options.Recovery.Rungs[0])
	require.Contains(t, e.noted(n.ID), "recovery unhealthy reboot")
}

// TestWaitingInStuck: a repair of an armed policy that waits for a person is a fault that says what the person
// does. In monitor mode nothing waits.
func TestWaitingInStuck(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	listed := func(mode recovery.Mode, brake recovery.Brake) []wire.ControlPlaneFault {
		t.Helper()
		e.round(func(_ record.Policy, f recovery.Fleet) (recovery.Result, recovery.Mode, error) {
			return recovery.Result{Decisions: []recovery.Decision{{NodeID: f.Nodes[0].NodeID, Phase: health.PhaseUnhealthy, Fault: fault(), Brake: brake, Why: "do this"}}}, mode, nil
		})
		all, err := e.Faults(t.Context())
		require.NoError(t, err)
		return all
	}
	for brake, want := range map[recovery.Brake]string{
		recovery.BrakeBudget:   "1 node waits for a budget before a repair",
		recovery.BrakeApproval: "1 node waits for an approval of a repair",
		recovery.BrakeFlapping: "1 node waits for a person, because repairs did not last, before a repair",
	} {
		require.Equal(t, []wire.ControlPlaneFault{{Component: "health-recovery", Reason: string(brake), Next: "gpuaas recovery status",
			Message: want + ", the first one " + n.Host + ": do this"}}, listed(recovery.ModeArmed, brake))
		require.Empty(t, listed(recovery.ModeMonitor, brake))
	}
	require.Empty(t, listed(recovery.ModeArmed, recovery.BrakeThreshold), "it ends without a person")
}

// TestNotRepairedInStuck: a node that a repair left quarantined is a fault with the commands for it, whether
// the repair ended with its evidence, was abandoned, or ended while the database was restored. One that an
// operator quarantined, or released, is none.
func TestNotRepairedInStuck(t *testing.T) {
	e := setup(t)
	quarantined := activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeQuarantined}
	listed := func() (faults []wire.ControlPlaneFault) {
		t.Helper()
		all, err := e.Faults(t.Context())
		require.NoError(t, err)
		for _, f := range all {
			if f.Reason == "not_repaired" {
				faults = append(faults, f)
			}
		}
		return faults
	}
	require.NoError(t, e.Finish(t.Context(), e.claim(e.inState(lifecycle.NodeActive).ID, lifecycle.ActionQuarantine).Fence, quarantined))
	n := e.inState(lifecycle.NodeActive)
	repair := e.claim(n.ID, lifecycle.ActionRecover)
	require.Empty(t, listed(), "it runs")
	require.NoError(t, e.Store.Repairs.KeepEvidence(t.Context(), repair.Fence, fault(), nil))
	require.NoError(t, e.Finish(t.Context(), repair.Fence, quarantined))
	require.Len(t, listed(), 1)
	require.Contains(t, listed()[0].Message, "1 node stayed quarantined because a repair ended without a cure, the newest one "+n.Host)
	require.Equal(t, "gpuaas node rma "+n.Host+"; when the node is repaired: gpuaas node release "+n.Host+" --reason TEXT", listed()[0].Next)
	require.NoError(t, e.Finish(t.Context(), e.claim(n.ID, lifecycle.ActionRelease).Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	require.Empty(t, listed(), "a person released it")

	lost := e.inState(lifecycle.NodeActive)
	r, _ := e.opened(lost.ID, lifecycle.ActionRecover, lifecycle.Options{})
	e.startRestoreMode()
	require.NoError(t, e.Abandon(t.Context(), r.OperationID, r.RunID, lifecycle.RunClosed))
	require.Equal(t, lifecycle.NodeQuarantined, e.node(lost.ID).State)
	require.Len(t, listed(), 1)
	require.Contains(t, listed()[0].Message, lost.Host)
	require.Equal(t, "gpuaas doctor "+lost.Host+"; when the node is repaired: gpuaas node release "+lost.Host+" --reason TEXT", listed()[0].Next)
}

// TestAbandonedRepairInStuck: a node whose repair was abandoned stays quarantined. Once that is accepted,
// gpuaas stuck has the command that returns it, and gpuaas node rehydrate and show have the same.
func TestAbandonedRepairInStuck(t *testing.T) {
	e := setup(t)
	e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	_, err := e.Claim(t.Context(), claimOf(in))
	require.NoError(t, err)
	e.exec("UPDATE nodes SET cordoned = true WHERE node_id = $1", in.NodeID)
	marked, err := e.Store.Operations.Abandon(t.Context(), in.OperationID, e.text("SELECT run_id FROM operations"), lifecycle.RunTerminated)
	require.NoError(t, err)
	require.True(t, marked)
	done, err := e.Store.Operations.AcceptAbandoned(t.Context(), in.NodeID, "", operator)
	require.NoError(t, err)
	release := "gpuaas node release " + in.Host
	require.Equal(t, []any{lifecycle.NodeQuarantined, release}, []any{done.Node.State, done.Next})
	faults, err := e.Faults(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"health-recovery", "not_repaired"}, []string{faults[0].Component, faults[0].Reason})
	require.Contains(t, faults[0].Message, "1 node stayed quarantined because a repair ended without a cure, the newest one "+in.Host)
	require.Equal(t, "gpuaas doctor "+in.Host+"; when the node is repaired: "+release+" --reason TEXT", faults[0].Next)
	c := e.claim(in.NodeID, lifecycle.ActionRelease)
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	faults, err = e.Faults(t.Context())
	require.NoError(t, err)
	require.Empty(t, faults)
}

// noted are the signals of health recovery about a node.
func (e *env) noted(nodeID string) (all []string) {
	e.t.Helper()
	rows, err := e.raw.Query(e.t.Context(), "SELECT type || ' ' || status || ' ' || reason FROM signals WHERE node_id = $1 AND source = 'recovery' ORDER BY at", nodeID)
	require.NoError(e.t, err)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(e.t, rows.Scan(&s))
		all = append(all, s)
	}
	return all
}

// TestBreakerInStuck: an open breaker is one fault with the next command, and closing it is audited. A
// second close changes nothing.
func TestBreakerInStuck(t *testing.T) {
	e := setup(t)
	open := recovery.BreakerState{OpenSince: time.Now().Add(-time.Hour), Why: "30 nodes of rack r1 within 1m"}
	e.round(func(record.Policy, recovery.Fleet) (recovery.Result, recovery.Mode, error) {
		return recovery.Result{Breaker: open, Incidents: []recovery.Incident{{Scope: recovery.ScopeRack, Key: "r1", Why: "rack r1"}}}, recovery.ModeArmed, nil
	})
	faults, err := e.Faults(t.Context())
	require.NoError(t, err)
	require.Len(t, faults, 1)
	require.Equal(t, []string{"health-recovery", "breaker_open"}, []string{faults[0].Component, faults[0].Reason})
	require.Contains(t, faults[0].Message, "30 nodes of rack r1 within 1m")
	require.Contains(t, faults[0].Next, "gpuaas recovery breaker close --reason")

	rows := e.changes("system", func() {
		for range 2 {
			b, err := e.Recovery.CloseBreaker(t.Context(), "switch replaced", operator)
			require.NoError(t, err)
			require.Zero(t, b.OpenSince)
			require.Contains(t, b.Why, "switch replaced")
			require.False(t, b.ClosedAt.IsZero())
		}
	})
	require.Equal(t, []string{"recovery.breaker_closed succeeded switch replaced"}, rows)
	faults, err = e.Faults(t.Context())
	require.NoError(t, err)
	require.Equal(t, "incident", faults[0].Reason)
	var f recovery.Fleet
	e.round(reboots(&f))
	require.Equal(t, []recovery.Incident{{Scope: recovery.ScopeRack, Key: "r1", Why: "rack r1"}}, f.Incidents, "the next round has them")
}

// TestRecoveryStatus: the status has the nodes that are not healthy with the newest sentence, and the
// budgets in use with their operations.
func TestRecoveryStatus(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	st, err := e.Recovery.RecoveryStatus(t.Context())
	require.NoError(t, err)
	require.Len(t, st.Nodes, 1)
	require.Equal(t, []any{"r1", n.Host, health.PhaseUnhealthy, recovery.RungReboot, in.OperationID, "gpu_xid"},
		[]any{st.Nodes[0].Rack, st.Nodes[0].Host, st.Nodes[0].Phase, st.Nodes[0].Rung, st.Nodes[0].OperationID, st.Nodes[0].Fault.Checker})
	scopes := []string{}
	for _, b := range st.Budgets {
		scopes = append(scopes, string(b.Scope)+" "+b.Key)
		require.Equal(t, []string{in.OperationID}, b.Operations)
	}
	require.Equal(t, "fleet , rack r1, region region-1, sku cpu-dev", strings.Join(scopes, ", "))
	require.False(t, st.DecidedAt.IsZero())
	counts, err := e.RecoveryCounts(t.Context())
	require.NoError(t, err)
	require.Positive(t, counts.RoundAge)
	counts.RoundAge = 0
	require.Equal(t, metrics.RecoveryCounts{Nodes: 1, Used: 1}, counts)
	e.exec("UPDATE recovery_states SET phase_since = now() - interval '1 hour'")
	phases, err := e.PhaseCounts(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, phases[0].OldestSeconds, 3600.0)
	phases[0].OldestSeconds = 0
	require.Equal(t, []metrics.PhaseCount{{Phase: health.PhaseUnhealthy.String(), Nodes: 1}}, phases)
	e.exec("UPDATE nodes SET state = 'removed'")
	phases, err = e.PhaseCounts(t.Context())
	require.NoError(t, err)
	require.Empty(t, phases, "a removed node is in no phase")
}

// TestListDecisions: pages of decisions, newest first, of one node and since a time.
func TestListDecisions(t *testing.T) {
	e := setup(t)
	a, b := e.faulty(), e.faulty()
	e.round(reboots(nil))
	e.exec("UPDATE recovery_decisions SET decided_at = now() - interval '2 days' WHERE node_id = $1", a.ID)
	page, next, err := e.Recovery.ListDecisions(t.Context(), adminapi.DecisionQuery{Page: adminapi.Page{Limit: 1}})
	require.NoError(t, err)
	require.Equal(t, b.Host, page[0].Host)
	page, next, err = e.Recovery.ListDecisions(t.Context(), adminapi.DecisionQuery{Page: adminapi.Page{Limit: 1, After: next}})
	require.NoError(t, err)
	require.Equal(t, a.Host, page[0].Host)
	require.Equal(t, fault(), page[0].Fault)
	require.Equal(t, []string{"region-1", "r1"}, []string{page[0].Region, page[0].Rack})
	require.Empty(t, next)
	page, _, err = e.Recovery.ListDecisions(t.Context(), adminapi.DecisionQuery{Page: all, Since: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	require.Len(t, page, 1)
	page, _, err = e.Recovery.ListDecisions(t.Context(), adminapi.DecisionQuery{Page: all, NodeID: a.ID})
	require.NoError(t, err)
	require.Len(t, page, 1)
}

// TestRecoveryFacts: the facts of a replay are the nodes with a fault, and the repairs, oldest first.
func TestRecoveryFacts(t *testing.T) {
	e := setup(t)
	n := e.faulty()
	in := e.round(reboots(nil)).Starts[0]
	f, err := e.Recovery.RecoveryFacts(t.Context(), time.Now().Add(-time.Hour))
	require.NoError(t, err)
	require.Equal(t, in.OperationID, f.Attempts[0].OperationID)
	require.Len(t, f.Nodes, 1)
	require.Equal(t, []any{n.Host, "r1", "XID"}, []any{f.Nodes[0].Host, f.Nodes[0].Rack, f.Nodes[0].Conditions[0].Reason})
	require.NotEmpty(t, f.Sizes)
}

// TestOldRepairs: retention keeps the last decision of a node that is not healthy and what runs.
func TestOldRepairs(t *testing.T) {
	e := setup(t)
	e.faulty()
	old := e.round(reboots(nil)).Starts[0]
	c := e.claims(old)
	require.NoError(t, e.Finish(t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationFailed, Node: lifecycle.NodeActive}))
	e.round(reboots(nil))
	e.exec("UPDATE recovery_decisions SET decided_at = now() - interval '200 days'")
	e.exec("UPDATE recovery_attempts SET started_at = now() - interval '200 days'")
	rows, err := e.Retention.DeleteRepairs(t.Context(), 180*day, 10)
	require.NoError(t, err)
	require.EqualValues(t, 2, rows)
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM recovery_states JOIN recovery_decisions USING (decision_id)"))
	require.EqualValues(t, 1, e.number("SELECT count(*) FROM recovery_attempts WHERE outcome = ''"))
	rows, err = e.Retention.DeleteRepairs(t.Context(), 180*day, 10)
	require.NoError(t, err)
	require.Zero(t, rows)
}

// TestRemovedNode: a removed node is not decided about, and its state ends. So does that of a node whose machine
// was terminated, but not while a repair replaces the machine.
func TestRemovedNode(t *testing.T) {
	e := setup(t)
	for change, left := range map[string]int{
		"state = 'removed'":    0,
		"state = 'registered'": 0,
		"state = 'registered', operation_id = gen_random_uuid()": 1,
	} {
		n := e.faulty()
		e.round(stored)
		e.exec("DELETE FROM conditions")
		e.exec("UPDATE nodes SET "+change+" WHERE node_id = $1", n.ID)
		require.Equal(t, left, e.round(stored).Nodes, change)
		st, err := e.Recovery.RecoveryStatus(t.Context())
		require.NoError(t, err)
		require.Len(t, st.Nodes, left, change)
		e.exec("DELETE FROM recovery_states")
	}
}

// TestPolicyWithDigest: the newest version with a digest is found, also the default policy, which is never
// stored.
func TestPolicyWithDigest(t *testing.T) {
	e := setup(t)
	first := e.arm()
	e.setPolicy(func(p *recovery.Policy) { p.Samples = 9 })
	third := e.setPolicy(func(p *recovery.Policy) { p.Samples = recovery.Default().Samples })
	require.Equal(t, first.Digest, third.Digest)
	p, err := e.Recovery.PolicyWithDigest(t.Context(), first.Digest)
	require.NoError(t, err)
	require.EqualValues(t, 3, p.Version)
	require.JSONEq(t, string(third.Body), string(p.Body))
	p, err = e.Recovery.PolicyWithDigest(t.Context(), recovery.Default().Digest())
	require.NoError(t, err)
	require.Zero(t, p.Version)
	_, err = e.Recovery.PolicyWithDigest(t.Context(), "ab")
	requireKind(t, err, schema.KindNotFound, "")
}

// TestOutdatedPolicyChange: of changes at once that were made from one policy, one is stored.
func TestOutdatedPolicyChange(t *testing.T) {
	e := setup(t)
	base := e.arm()
	stored := 0
	for _, err := range race(4, func(i int) error {
		_, err := e.Recovery.ChangePolicy(t.Context(), func(now record.Policy) (recovery.Policy, error) {
			p := recovery.Default()
			if p.Samples = 10 + i; now.Digest != base.Digest {
				return p, schema.NewError(schema.KindDecisionOutdated, "changed")
			}
			return p, nil
		}, "r", operator)
		return err
	}) {
		if err == nil {
			stored++
			continue
		}
		requireKind(t, err, schema.KindDecisionOutdated, "")
	}
	require.Equal(t, 1, stored)
	require.EqualValues(t, 2, e.number("SELECT max(version) FROM recovery_policies"))
}
