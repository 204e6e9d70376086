package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// keepEvidence ends a repair of the node without a cure, with its evidence.
func (e *env) keepEvidence(nodeID string, attempts ...recovery.Attempt) {
	e.t.Helper()
	c := e.claim(nodeID, lifecycle.ActionRecover)
	require.NoError(e.t, e.Store.Repairs.KeepEvidence(e.t.Context(), c.Fence, recovery.Fault{Checker: "gpu_xid", Code: 79}, attempts))
	require.NoError(e.t, e.Finish(e.t.Context(), c.Fence, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeQuarantined}))
}

// TestEvidenceHasNoSecrets: a node cannot get a secret into the document for its vendor, nor characters
// that a terminal would interpret: not by a kernel line, a boot ID, or a test.
func TestEvidenceHasNoSecrets(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	e.exec("UPDATE nodes SET state = 'active'")
	token, _, _ := trust.NewToken()
	key := "-----BEGIN EC " + "PRIVATE KEY-----\nMHcCAQEEIOaBcDeFg\n-----END EC " + "PRIVATE KEY-----"
	at := time.Now()
	line := func(component, detail string) health.Condition {
		return health.Condition{Checker: "gpu_xid", Component: component, Status: health.Unhealthy, Reason: "XID", Code: 79, Repair: health.RepairReboot, Detail: detail, Since: at, Samples: 1}
	}
	report := health.Report{At: at, Conditions: []health.Condition{line("GPU-1", "token "+token), line("GPU-2", "fell off the bus")}}
	require.NoError(t, e.Heartbeat(ctx, c, wire.Heartbeat{At: at, BootID: "boot-1", Driver: "\x1b]0;x\a", Health: &report}))

	e.keepEvidence(c.NodeID, recovery.Attempt{Rung: recovery.RungReboot, Outcome: recovery.OutcomeNotCured, BootBefore: "\x1b[2Jboot\x00", Tests: []recovery.Test{
		{Name: "burn-in", Detail: "Authorization: Bearer " + token + "\nstep 2 of 9"}, {Name: "kernel", Detail: key + "\nuncorrectable\u202e\u009b31m"}}})
	stored := e.text("SELECT bundle::text FROM rma_bundles")
	for _, secret := range []string{token, "MHcCAQEEIOaBcDeFg"} {
		require.NotContains(t, stored, secret)
	}
	b, err := e.Store.Repairs.Evidence(ctx, e.node(c.NodeID))
	require.NoError(t, err)
	raw, err := json.Marshal(b)
	require.NoError(t, err)
	for _, r := range string(raw) {
		require.False(t, r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u202e', "%q in %s", r, raw)
	}
	require.NotContains(t, string(raw), `\u00`)
	require.Equal(t, []string{"REDACTED", "fell off the bus"}, []string{b.Conditions[0].Detail, b.Conditions[1].Detail})
	require.Equal(t, "?[2Jboot?", b.Attempts[0].BootBefore)
	require.Equal(t, "REDACTED\nstep 2 of 9", b.Attempts[0].Tests[0].Detail)
	require.Equal(t, "REDACTED\nREDACTED\nREDACTED\nuncorrectable??31m", b.Attempts[0].Tests[1].Detail)
	require.Equal(t, 79, b.Fault.Code)
	require.False(t, b.At.IsZero())
}

// TestCleanEvidence: the outputs of tasks are redacted in their lists and keys, a private key in several
// lines too, and a key that does not end hides nothing outside of its list.
func TestCleanEvidence(t *testing.T) {
	t.Parallel()
	token, _, _ := trust.NewToken()
	output := `{"n":12345678901234567890,"` + token + `":true,"lines":["one","-----BEGIN ` + `PRIVATE KEY-----","MC4C","-----END ` + `PRIVATE KEY-----","two"],
		"open":["-----BEGIN ` + `PRIVATE KEY-----","MC4C"],"serial":"165"}`
	b := evidence.Bundle{Host: "gpu-1", Tasks: []evidence.Task{{TaskID: "t", Message: "posted " + token, Output: json.RawMessage(output)}, {TaskID: "t2", Message: "ok"}}}
	got, err := b.Clean(secrets.New())
	require.NoError(t, err)
	require.JSONEq(t, `{"n":12345678901234567890,"REDACTED":true,"lines":["one","REDACTED","REDACTED","REDACTED","two"],"open":["REDACTED","REDACTED"],"serial":"165"}`,
		string(got.Tasks[0].Output))
	require.Contains(t, string(got.Tasks[0].Output), "12345678901234567890")
	require.Equal(t, []string{"gpu-1", "REDACTED", "ok"}, []string{got.Host, got.Tasks[0].Message, got.Tasks[1].Message})
	_, err = evidence.Bundle{Tasks: []evidence.Task{{Output: json.RawMessage("{")}}}.Clean(secrets.New())
	require.Error(t, err)
}

// TestOldEvidenceIsDeleted: in batches, that of removed nodes too, but not that of a node which still waits
// for its vendor.
func TestOldEvidenceIsDeleted(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	var nodes []wire.NodeView
	for range 4 {
		n := e.inState(lifecycle.NodeActive)
		e.keepEvidence(n.ID)
		nodes = append(nodes, n)
	}
	e.exec("UPDATE rma_bundles SET created_at = now() - interval '401 days' WHERE node_id <> $1", nodes[3].ID)
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", nodes[0].ID)
	e.exec("UPDATE nodes SET state = 'active' WHERE node_id <> ALL ($1::uuid[])", []string{nodes[0].ID, nodes[2].ID})
	for _, want := range []int64{1, 1, 0} {
		deleted, err := e.Retention.DeleteEvidence(ctx, 400*day, 1)
		require.NoError(t, err)
		require.Equal(t, want, deleted)
	}
	left := e.text("SELECT string_agg(host, ' ' ORDER BY host) FROM rma_bundles")
	require.Equal(t, nodes[2].Host+" "+nodes[3].Host, left, "a quarantined node, and a young bundle")
}
