package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// nodeOf returns the ID of a host.
func (e *env) nodeOf(host string) (id string) {
	e.t.Helper()
	require.NoError(e.t, e.raw.QueryRow(e.t.Context(), "SELECT node_id FROM nodes WHERE host = $1", host).Scan(&id))
	return id
}

// parkAt parks a drain of a host for agent_silent, since a time.
func (e *env) parkAt(host string, since time.Time) (operationID string) {
	e.t.Helper()
	operationID = schema.NewID()
	e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, stuck, actor, workflow_id, run_id, claim)
		SELECT $1::uuid, node_id, 1, 'drain', 'parked', jsonb_build_object('phase', 'cordon', 'reason', 'agent_silent', 'waiting_on', 'agent', 'since', $3::text),
		'ops', 'w', 'r', '{}' FROM nodes WHERE host = $2`, operationID, host, since.UTC().Format(time.RFC3339Nano))
	return operationID
}

// TestEvidence reads the node, its park, what surrounds it and what changed.
func TestEvidence(t *testing.T) {
	e := setup(t)
	rack := `labels = '{"rack":"r7"}', `
	withNodes(e, map[string]string{
		"a": rack + "last_heartbeat_at = now() - interval '10 minutes', uptime_seconds = 60, agent_fault = 'disk full', workloads = '[{\"kind\":\"pod\",\"name\":\"x\"}]'",
		"b": rack + "last_heartbeat_at = now() - interval '10 minutes'", "c": rack + "cordoned = false", "d": "region_code = 'elsewhere'"})
	since := time.Now().UTC().Add(-5 * time.Minute).Truncate(time.Millisecond)
	op := e.parkAt("a", since)
	e.parkAt("b", since)
	id := e.nodeOf("a")
	_, err := e.SetNode(t.Context(), id, nodeLabels("tier", "gold"), audit.Subject{Actor: "alice"})
	require.NoError(t, err)
	e.exec(`INSERT INTO audit_events (stream, seq, at, actor, action, target, result, operation_id, prev_hash, hash)
		SELECT stream, seq + 1, now(), 'ops', $2, target, 'accepted', $3, '', '' FROM audit_events WHERE stream = $1`, id, audit.ActionName(lifecycle.ActionDrain), op)

	got, err := e.Evidence(t.Context(), id, cause.Lookback)
	require.NoError(t, err)
	require.Equal(t, cause.Park{OperationID: op, Action: lifecycle.ActionDrain, Phase: "cordon", Reason: "agent_silent", Since: since}, got.Park)
	require.True(t, got.Silent())
	require.Equal(t, []any{"disk full", []string{"pod x"}, "r7"}, []any{got.Node.AgentFault, got.Node.Workloads, got.Node.Rack})
	require.WithinDuration(t, time.Now().Add(-11*time.Minute), got.Node.BootedAt, time.Minute)
	require.Equal(t, []int{2, 3, 2}, []int{got.Around.RackSilent, got.Around.RackNodes, got.Around.RegionSilent})
	require.Equal(t, 2, got.Around.SameReason)
	require.True(t, got.Around.Receiving)
	require.Equal(t, 1, got.Around.Free)
	require.Len(t, got.Changes, 1, "the parked operation is not its own cause")
	require.Equal(t, []string{audit.NodeSet, "alice", "node"}, []string{got.Changes[0].Action, got.Changes[0].Actor, got.Changes[0].Scope})
	require.Equal(t, "agent_fault", cause.Explain(got).TopCandidate)

	_, err = e.Evidence(t.Context(), schema.NewID(), cause.Lookback)
	require.Equal(t, schema.KindNotFound, schema.KindOf(err))
}

// TestCauses: a park is explained once, a later park of the same operation again.
func TestCauses(t *testing.T) {
	e := setup(t)
	withNodes(e, map[string]string{"a": "cordoned = false"})
	since := time.Now().UTC().Add(-5 * time.Minute).Truncate(time.Millisecond)
	op := e.parkAt("a", since)
	parks, err := e.Unexplained(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, parks, 1)
	require.Equal(t, []string{op, "a"}, []string{parks[0].OperationID, parks[0].Host})

	found := cause.Report{OperationID: op, Since: &since, TopCandidate: "node_silent", Candidates: []cause.Candidate{{Cause: "node_silent", Confidence: .5}}}
	for range 2 {
		require.NoError(t, e.KeepCause(t.Context(), found))
	}
	kept, err := e.Cause(t.Context(), op, since)
	require.NoError(t, err)
	require.Equal(t, "node_silent", kept.TopCandidate)
	parks, err = e.Unexplained(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, parks)

	later := since.Add(time.Minute)
	e.exec(`UPDATE operations SET stuck = jsonb_set(stuck, '{since}', to_jsonb($1::text))`, later.Format(time.RFC3339Nano))
	parks, err = e.Unexplained(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, parks, 1)
	kept, err = e.Cause(t.Context(), op, later)
	require.NoError(t, err)
	require.Nil(t, kept, "the cause of an earlier park is not that of this one")
}
