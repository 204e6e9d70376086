package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// signalsOf lists the signals of a node, oldest first, as type, status, reason and component.
func (e *env) signalsOf(nodeID string) []string {
	e.t.Helper()
	rows, _, err := e.ListSignals(e.t.Context(), adminapi.SignalQuery{Page: all, NodeID: nodeID})
	require.NoError(e.t, err)
	lines := make([]string, len(rows))
	for i, s := range rows {
		line := string(s.Type)
		for _, word := range []string{string(s.Status), s.Reason, s.Component} {
			if word != "" {
				line += " " + word
			}
		}
		lines[len(rows)-1-i] = line
	}
	return lines
}

// newSignals returns the signals that fn writes about a node.
func (e *env) newSignals(nodeID string, fn func()) []string {
	e.t.Helper()
	before := len(e.signalsOf(nodeID))
	fn()
	return e.signalsOf(nodeID)[before:]
}

// A silence is one signal in each state in which the agent polls, and so is its end. Only an active
// node changes its state.
func TestSilenceIsASignal(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	polling := map[lifecycle.NodeState]bool{lifecycle.NodeActive: true, lifecycle.NodeOffline: true, lifecycle.NodeQuarantined: true,
		lifecycle.NodeDraining: true, lifecycle.NodeDrained: true, lifecycle.NodeRetired: true}
	silence := func() {
		for _, err := range race(5, func(int) error { _, err := e.MarkSilent(ctx); return err }) {
			require.NoError(t, err)
		}
	}
	back := func() {
		for _, err := range race(5, func(int) error { return e.Heartbeat(ctx, c, wire.Heartbeat{}) }) {
			require.NoError(t, err)
		}
	}
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	for _, s := range lifecycle.NodeStates() {
		e.exec(`UPDATE nodes SET state = $2, state_since = now() - interval '1 hour', last_heartbeat_at = now() - interval '6 minutes' WHERE node_id = $1`, c.NodeID, s)
		var silent, returned []string
		if polling[s] {
			silent, returned = []string{"instance.silent"}, []string{"instance.returned"}
		}
		require.ElementsMatch(t, silent, e.newSignals(c.NodeID, silence), s)
		require.Empty(t, e.newSignals(c.NodeID, silence), s)
		require.ElementsMatch(t, returned, e.newSignals(c.NodeID, back), s)
		require.Empty(t, e.newSignals(c.NodeID, back), s)
		want := s
		if s == lifecycle.NodeOffline {
			want = lifecycle.NodeActive
		}
		require.Equal(t, want, e.node(c.NodeID).State)
	}
}

// A node that became silent in one state and is active when it is found silent again moves to
// offline without a second signal.
func TestSilenceOutlastsTheState(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	e.exec("UPDATE nodes SET state = 'drained', state_since = now() - interval '1 hour', last_heartbeat_at = now() - interval '1 hour'")
	mark := func() []string {
		moved, err := e.MarkSilent(ctx)
		require.NoError(t, err)
		return moved
	}
	require.Equal(t, []string{"instance.silent"}, e.newSignals(c.NodeID, func() { require.Empty(t, mark()) }))
	e.exec("UPDATE nodes SET state = 'active'")
	require.Empty(t, e.newSignals(c.NodeID, func() { require.Equal(t, []string{c.NodeID}, mark()) }))
	require.Equal(t, []string{"instance.returned"}, e.newSignals(c.NodeID, func() { require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{})) }))
	require.Equal(t, lifecycle.NodeActive, e.node(c.NodeID).State)
}

// A node that never sent a heartbeat is not silent.
func TestNodeWithoutHeartbeatIsNotSilent(t *testing.T) {
	e := setup(t)
	n := e.inState(lifecycle.NodeQuarantined)
	e.exec("UPDATE node_api SET receiving_since = now() - interval '1 hour'")
	e.exec("UPDATE nodes SET state_since = now() - interval '1 hour'")
	_, err := e.MarkSilent(t.Context())
	require.NoError(t, err)
	require.Empty(t, e.signalsOf(n.ID))
}

// A heartbeat with another boot ID is one signal, however many replicas receive it. The first boot
// ID is none, and neither is a missing one.
func TestBootIsASignal(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	poll := func(boot string) func() {
		return func() {
			for _, err := range race(5, func(int) error { return e.Heartbeat(ctx, c, wire.Heartbeat{BootID: boot}) }) {
				require.NoError(t, err)
			}
		}
	}
	require.Empty(t, e.newSignals(c.NodeID, poll("a")))
	require.Equal(t, []string{"instance.booted"}, e.newSignals(c.NodeID, poll("b")))
	require.Empty(t, e.newSignals(c.NodeID, poll("b")))
	require.Empty(t, e.newSignals(c.NodeID, poll("")))
	require.Empty(t, e.newSignals(c.NodeID, poll("b")), "the one before is not known")
	rows, _, err := e.ListSignals(ctx, adminapi.SignalQuery{Page: all, NodeID: c.NodeID})
	require.NoError(t, err)
	require.Equal(t, health.Signal{SignalID: rows[0].SignalID, Type: health.SignalBooted, Source: health.SourceHeartbeat, NodeID: c.NodeID, Host: c.Host,
		InstanceID: rows[0].InstanceID, At: rows[0].At, BootID: "b", Detail: "the boot before was a"}, rows[0])
	require.Equal(t, e.text("SELECT coalesce((SELECT instance_id::text FROM instances WHERE node_id = $1), '')", c.NodeID), rows[0].InstanceID)
}

// A signal with an ID is recorded once, and its detail is one printable line.
func TestRecordSignal(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	s := health.Signal{SignalID: schema.NewID(), NodeID: m.caller.NodeID, Type: health.SignalDrift, Source: health.SourceDrift, Detail: "a\nb\x1b[2J\u202e"}
	for range 2 {
		require.NoError(t, e.RecordSignal(ctx, s))
	}
	rows, _, err := e.ListSignals(ctx, adminapi.SignalQuery{Page: all, NodeID: s.NodeID})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, "a b?[2J?", rows[0].Detail)
	require.Equal(t, e.node(s.NodeID).Instance.InstanceID, rows[0].InstanceID)
}

// Signals are listed newest first in pages, by node, type, properties of the node and time.
func TestListSignals(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	here := e.register()
	there := e.register(func(r *wire.RegisterNodeRequest) { r.RegionCode = "region-2" })
	for i := range 7 {
		n, kind := here.ID, health.SignalSilent
		if i%2 == 1 {
			n, kind = there.ID, health.ConditionSignal("gpu")
		}
		require.NoError(t, e.RecordSignal(ctx, health.Signal{NodeID: n, Type: kind, Source: health.SourceWatch, Detail: fmt.Sprint(i)}))
	}
	e.exec("UPDATE signals SET at = now() - make_interval(hours => 7 - detail::integer)")
	list := func(q adminapi.SignalQuery) (details string) {
		t.Helper()
		q.Limit = 2
		for pages := 0; ; pages++ {
			require.Less(t, pages, 10)
			rows, next, err := e.ListSignals(ctx, q)
			require.NoError(t, err)
			require.LessOrEqual(t, len(rows), 2)
			for _, r := range rows {
				details += r.Detail
			}
			if q.After = next; next == nil {
				return details
			}
		}
	}
	selector, err := adminapi.ParseSelector("region=region-2")
	require.NoError(t, err)
	require.Equal(t, "6543210", list(adminapi.SignalQuery{}))
	require.Equal(t, "6420", list(adminapi.SignalQuery{NodeID: here.ID}))
	require.Equal(t, "531", list(adminapi.SignalQuery{Regions: []string{"region-2"}}))
	require.Equal(t, "531", list(adminapi.SignalQuery{Selector: selector}))
	require.Equal(t, "6543210", list(adminapi.SignalQuery{SKUs: []string{"cpu-dev"}}))
	require.Equal(t, "6420", list(adminapi.SignalQuery{Types: []health.SignalType{health.SignalSilent}}))
	require.Equal(t, "531", list(adminapi.SignalQuery{Types: []health.SignalType{"health.*"}}))
	require.Equal(t, "6543210", list(adminapi.SignalQuery{Types: []health.SignalType{"health.*", health.SignalSilent}}))
	require.Empty(t, list(adminapi.SignalQuery{Types: []health.SignalType{"health_.*", "healt.*"}}))
	require.Equal(t, "65", list(adminapi.SignalQuery{Since: time.Now().Add(-150 * time.Minute)}))
	_, _, err = e.ListSignals(ctx, adminapi.SignalQuery{Page: adminapi.Page{Limit: 1, After: []string{"x", "y"}}})
	requireKind(t, err, schema.KindInvalidRequest, "bad_page_token")
}

// Old signals are deleted in batches.
func TestOldSignalsAreDeleted(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	for range 3 {
		require.NoError(t, e.RecordSignal(ctx, health.Signal{NodeID: n.ID, Type: health.SignalSilent, Source: health.SourceWatch}))
	}
	e.exec("UPDATE signals SET at = now() - interval '91 days' WHERE signal_id <> (SELECT max(signal_id::text)::uuid FROM signals)")
	for _, want := range []int64{1, 1, 0} {
		deleted, err := e.Retention.DeleteSignals(ctx, 90*day, 1)
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	require.Len(t, e.signalsOf(n.ID), 1)
}

// The end of a machine ends what its agent reported about its health.
func TestTerminationForgetsTheHealth(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.created()
	m.use()
	require.NoError(t, e.Heartbeat(ctx, m.caller, wire.Heartbeat{BootID: "a", Health: report(time.Now(), unhealthy("gpu", "GPU-0", "Fallen"))}))
	require.Len(t, e.node(m.caller.NodeID).Conditions, 1)
	e.exec("UPDATE nodes SET silent_at = now()")
	c := e.claim(m.caller.NodeID, lifecycle.ActionTerminate)
	require.NoError(t, e.Store.Operations.Released(ctx, c.Fence, c.Instance.InstanceID))
	require.NoError(t, e.Finish(ctx, c.Fence, terminated(lifecycle.OperationCompleted)))
	require.Empty(t, e.node(m.caller.NodeID).Conditions)
	require.Zero(t, e.number("SELECT count(*) FROM health_reports"))
	require.Zero(t, e.number("SELECT count(*) FROM nodes WHERE silent_at IS NOT NULL"))
}

// An operation that parks because the quota is used up is one signal, as it is one audit event.
func TestQuotaIsOneSignal(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	n := e.register()
	e.exec("UPDATE nodes SET onboarding_mode = 'libvirt'")
	f := e.claim(n.ID, lifecycle.ActionProvision).Fence
	stuck := &lifecycle.Stuck{Phase: "adopt", Reason: "provider_quota_exceeded", Message: "0 of 8 GPUs are left", WaitingOn: lifecycle.AttentionOperator, Since: time.Now().UTC()}
	for i, park := range []string{"run/1", "run/1", "run/2"} {
		require.NoError(t, e.Advance(ctx, f, activities.Advance{Phase: "adopt", Step: int64(i + 1), ParkID: park, Stuck: stuck}))
	}
	rows, _, err := e.ListSignals(ctx, adminapi.SignalQuery{Page: all, NodeID: n.ID})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, health.SignalQuota, rows[0].Type)
	require.Equal(t, "libvirt: 0 of 8 GPUs are left", rows[0].Detail)
}

// secondReplica opens the database as another process does.
func (e *env) secondReplica() *store.Store {
	e.t.Helper()
	s, err := store.Open(context.Background(), store.Config{URL: restricted(e.t, e.url), MaxConns: 10})
	require.NoError(e.t, err)
	e.t.Cleanup(s.Close)
	return s
}
