package store_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// signed is a task that the node holds, with an envelope of the body.
func (e *env) signed(c nodeapi.Caller, f activities.Fence, step, body string) (activities.TaskRow, string) {
	e.t.Helper()
	s := spec(f, step, task.WorkloadDrain)
	row, err := e.Prepare(e.t.Context(), s, taskOwner(step))
	require.NoError(e.t, err)
	envelope := []byte(`{"payload":"` + base64.StdEncoding.EncodeToString([]byte(body)) + `"}`)
	require.NoError(e.t, e.Enqueue(e.t.Context(), s, taskOwner(step), row, envelope))
	require.Equal(e.t, row.TaskID, e.take(c, time.Minute).TaskID)
	digest, err := trust.EnvelopeDigest(envelope)
	require.NoError(e.t, err)
	return row, digest
}

// A result of another body than the signed one changes nothing and stays in the
// audit; the true one counts before and after it.
func TestMismatchedResultIsRefused(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, f := e.drain()
	row, digest := e.signed(c, f, "drain", "what was asked for")
	result := succeeded(1, task.DrainResult{Stopped: []string{"a"}})
	result.EnvelopeSHA256, result.Message = strings.Repeat("ab", 32), "ran to its end"
	before := e.task(row.TaskID)
	rows := e.changes(c.NodeID, func() {
		_, err := e.Result(ctx, c, row.TaskID, result)
		requireKind(t, err, schema.KindInvalidRequest, "envelope_mismatch")
	})
	require.Equal(t, []string{"tasks.mismatched_result refused envelope_mismatch"}, rows)
	again := e.changes(c.NodeID, func() {
		_, err := e.Result(ctx, c, row.TaskID, result)
		requireKind(t, err, schema.KindInvalidRequest, "envelope_mismatch")
	})
	require.Empty(t, again, "one row a minute")
	events := e.chain(c.NodeID)
	last := events[len(events)-1]
	require.Equal(t, row.TaskID, last.Target)
	require.Equal(t, map[string]string{"type": "workload.drain", "signed": digest, "ran": result.EnvelopeSHA256,
		"status": "succeeded", "message": "ran to its end"}, last.Detail)
	require.Equal(t, before, e.task(row.TaskID))
	require.Empty(t, e.messages())

	result.EnvelopeSHA256 = digest
	for range 2 {
		_, err := e.Result(ctx, c, row.TaskID, result)
		require.NoError(t, err)
	}
	unread, _ := e.signed(c, f, "again", "another")
	_, err := e.Result(ctx, c, unread.TaskID, task.Result{LeaseEpoch: 1, Status: task.Failed, Code: schema.KindTaskRefused})
	require.NoError(t, err, "a refusal names no body")
}

// The agent drops what is refused so. Its task is lost with its lease.
func TestMismatchedTaskIsLost(t *testing.T) {
	e := setup(t)
	c, f := e.drain()
	row, _ := e.signed(c, f, "drain", "what was asked for")
	require.NoError(t, e.progress(c, row.TaskID))
	result := succeeded(1, task.DrainResult{})
	result.EnvelopeSHA256 = strings.Repeat("ab", 32)
	_, err := e.Result(t.Context(), c, row.TaskID, result)
	requireKind(t, err, schema.KindInvalidRequest, "envelope_mismatch")
	e.stale()
	require.Equal(t, activities.ReclaimLost, e.reclaim()[row.TaskID])
}
