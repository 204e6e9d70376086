package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// Finished tasks are deleted once nothing needs them. The newest task of a node stays: its seq
// is the node's floor.
func TestOldTasksAreDeleted(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	c, _, _ := e.enroll()
	f := e.claim(c.NodeID, lifecycle.ActionProvision).Fence
	for _, step := range []string{"one", "two", "three"} {
		row := e.held(c, f, step, task.FactsCollect)
		_, err := e.Result(ctx, c, row.TaskID, succeeded(1, inventory.Facts{}))
		require.NoError(t, err)
	}
	e.exec("UPDATE node_tasks SET created_at = now() - interval '101 days', finished_at = now() - interval '101 days'")
	left := func() int64 {
		t.Helper()
		_, err := e.Retention.DeleteTasks(ctx, 100*day, 1)
		require.NoError(t, err)
		return e.number("SELECT count(*) FROM node_tasks")
	}
	require.Equal(t, int64(3), left(), "the results are not delivered")
	e.exec("DELETE FROM outbox")
	require.Equal(t, int64(3), left(), "the operation is open")
	require.NoError(t, e.Finish(ctx, f, activities.Finish{Status: lifecycle.OperationCompleted, Instance: lifecycle.InstanceRunning}))
	require.Equal(t, int64(3), left(), "the operation ended just now")
	e.exec("UPDATE operations SET ended_at = now() - interval '101 days'")
	require.Equal(t, int64(2), left(), "a batch has one row")
	for range 2 {
		require.Equal(t, int64(1), left())
	}
	require.Equal(t, int64(3), e.number("SELECT seq FROM node_tasks"))

	f = e.claim(c.NodeID, lifecycle.ActionDrain).Fence
	require.Equal(t, int64(4), e.dispatch(f, "four", task.FactsCollect).Seq)
	require.Equal(t, int64(1), left(), "the new task is the newest")
}

// Certificates, tokens and keys are deleted long after they ended; the node continues.
func TestOldIdentitiesAreDeleted(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	m := e.machine()
	for n := range 3 {
		m.adopt(m.renewed(m.k(n + 2)))
		m.use()
	}
	deleted := func() int64 {
		t.Helper()
		rows, err := e.Retention.DeleteIdentities(ctx, 100*day, 100)
		require.NoError(t, err)
		return rows
	}
	require.Zero(t, deleted())
	e.exec("UPDATE node_certificates SET issued_at = issued_at - interval '200 days', not_after = not_after - interval '200 days', retired_at = retired_at - interval '200 days'")
	e.exec("UPDATE enrollment_tokens SET issued_at = issued_at - interval '200 days', expires_at = expires_at - interval '200 days', claimed_at = claimed_at - interval '200 days', ended_at = ended_at - interval '200 days'")
	e.exec("UPDATE identity_keys SET first_seen = first_seen - interval '200 days'")

	// After a removal, an identity was issued: what proves that stays.
	e.exec(`INSERT INTO operations (operation_id, node_id, op_seq, action, status, actor, workflow_id, run_id, claim, started_at, ended_at)
		VALUES (gen_random_uuid(), $1, 0, 'remove', 'completed', 'a', 'w', 'r', '{}', now() - interval '300 days', now() - interval '300 days')`, m.caller.NodeID)
	require.Equal(t, int64(4), e.number("SELECT count(*) FROM node_certificates WHERE node_id = $1", m.caller.NodeID))
	deleted()
	require.Equal(t, int64(4), e.number("SELECT count(*) FROM node_certificates WHERE node_id = $1", m.caller.NodeID))
	e.exec("DELETE FROM operations")

	require.Positive(t, deleted())
	require.Equal(t, int64(1), e.number("SELECT count(*) FROM node_certificates"), "the current one")
	require.Equal(t, "enroll consumed, recover issued", e.text("SELECT string_agg(purpose || ' ' || state, ', ' ORDER BY purpose) FROM enrollment_tokens"))
	require.Equal(t, int64(2), e.number("SELECT count(*) FROM identity_keys"), "of the current certificate and of the enrollment token")
	require.Zero(t, deleted())
	m.use()
	m.adopt(m.renewed(m.k(9)))
	m.use()
	require.False(t, e.locked(m.caller.NodeID))
}

// Messages without a workflow are deleted, due ones are not.
func TestOldMessagesAreDeleted(t *testing.T) {
	e := setup(t)
	e.exec(`INSERT INTO outbox (workflow_id, event, created_at, orphaned_at) VALUES ('due', '{}', now() - interval '200 days', NULL),
		('old', '{}', now() - interval '200 days', now() - interval '101 days'), ('new', '{}', now(), now() - interval '99 days')`)
	rows, err := e.Retention.DeleteMessages(t.Context(), 100*day, 10)
	require.NoError(t, err)
	require.Equal(t, int64(1), rows)
	require.Equal(t, "due new", e.text("SELECT string_agg(workflow_id, ' ' ORDER BY workflow_id) FROM outbox"))
}

// The functions delete nothing that is younger than a day, whatever they are asked.
func TestNothingNewIsDeleted(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	f := e.claim(c.NodeID, lifecycle.ActionProvision).Fence
	for _, step := range []string{"one", "two"} {
		e.held(c, f, step, task.FactsCollect)
	}
	e.exec("DELETE FROM outbox")
	e.exec("UPDATE node_tasks SET status = 'cancelled', finished_at = now() - interval '23 hours', created_at = now() - interval '23 hours'")
	e.exec("UPDATE operations SET status = 'failed', ended_at = now() - interval '23 hours'")
	rows, err := e.Retention.DeleteTasks(t.Context(), -time.Hour, 10)
	require.NoError(t, err)
	require.Zero(t, rows)
	e.exec("UPDATE node_tasks SET finished_at = now() - interval '25 hours', created_at = now() - interval '25 hours'")
	e.exec("UPDATE operations SET ended_at = now() - interval '25 hours'")
	rows, err = e.Retention.DeleteTasks(t.Context(), -time.Hour, 10)
	require.NoError(t, err)
	require.Equal(t, int64(1), rows)
}

func TestTableSizes(t *testing.T) {
	e := setup(t)
	sizes, err := e.TableSizes(t.Context())
	require.NoError(t, err)
	var tables []string
	for _, s := range sizes {
		require.Positive(t, s.Bytes)
		tables = append(tables, s.Table)
	}
	require.Subset(t, tables, []string{"audit_events", "node_tasks", "outbox"})
}

func TestRetentionAge(t *testing.T) {
	e := setup(t)
	e.exec("UPDATE retention_runs SET succeeded_at = now() - interval '50 days'")
	age, err := e.RetentionAge(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, age, (50 * day).Seconds())
	require.NoError(t, e.Retention.Succeeded(t.Context()))
	age, err = e.RetentionAge(t.Context())
	require.NoError(t, err)
	require.Less(t, age, day.Seconds())
}

// TestRetentionAsTheWorker: the role of the workers may delete each class of old records. The other tests
// run with the privileges of all processes.
func TestRetentionAsTheWorker(t *testing.T) {
	e := setup(t)
	s, err := store.Open(t.Context(), store.Config{URL: pgtest.As(e.url, store.RoleWorker), MaxConns: 2})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	r := s.Retention
	for name, remove := range map[string]func(context.Context, time.Duration, int) (int64, error){"tasks": r.DeleteTasks, "identities": r.DeleteIdentities,
		"messages": r.DeleteMessages, "repairs": r.DeleteRepairs, "signals": r.DeleteSignals, "evidence": r.DeleteEvidence, "sessions": r.DeleteSessions} {
		_, err := remove(t.Context(), 90*day, 1)
		require.NoError(t, err, name)
	}
}
