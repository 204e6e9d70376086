package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// Helpers that read a node's tasks and change timestamps in the database.

// tasksOf lists the node's tasks, newest first.
func tasksOf(t *testing.T, nodeHost string) []wire.TaskView {
	t.Helper()
	return decode[wire.TaskList](t, ok(t, "task", "list", "--node", nodeHost, "--all", "-o", "json")).Tasks
}

// newest waits for the node's latest task of a type to have a status.
func newest(t *testing.T, nodeHost string, kind task.Type, is ...task.Status) (found wire.TaskView) {
	t.Helper()
	eventually(t, string(kind)+" is "+statuses(is), func() bool {
		for _, v := range tasksOf(t, nodeHost) {
			if v.Type == kind {
				found = v
				return len(is) == 0 || slices.Contains(is, v.Status)
			}
		}
		return false
	})
	return found
}

func statuses(all []task.Status) string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = string(s)
	}
	return strings.Join(out, " or ")
}

// nodeTask reads one task with gpuaas task show.
func nodeTask(t *testing.T, id string) wire.TaskView {
	t.Helper()
	return decode[wire.TaskView](t, ok(t, "task", "show", id, "-o", "json"))
}

// waits is the entry of a node in gpuaas stuck, empty if there is none.
type waits struct{ NodeID, Reason, Next string }

func stuckOf(t *testing.T, nodeID string) (found waits) {
	t.Helper()
	for _, o := range decode[wire.StuckList](t, ok(t, "stuck", "--limit", "0", "-o", "json")).Stuck {
		if o.NodeID == nodeID {
			return waits{o.NodeID, o.Stuck.Reason, o.Stuck.Next}
		}
	}
	return waits{}
}

// waitParked waits until the node's operation is parked for a reason and returns the
// command that gpuaas stuck suggests.
func waitParked(t *testing.T, nodeID, reason string) (next string) {
	t.Helper()
	eventually(t, "parked with "+reason, func() bool {
		w := stuckOf(t, nodeID)
		next = w.Next
		return w.Reason == reason
	})
	return next
}

// query runs statements on the stack's Postgres. See harness.Query.
func query(t *testing.T, read func(pgx.Rows), sql string, args ...any) {
	t.Helper()
	harness.Query(t, shared.Stack, read, sql, args...)
}

// lock runs a statement that locks rows or a table of the stack's Postgres, until release is
// called or the test ends.
func lock(t *testing.T, statement string, args ...any) (release func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the test's end releases the lock
	conn := harness.Connect(ctx, t, shared.Stack)
	release = sync.OnceFunc(func() { require.NoError(t, conn.Close(ctx)) })
	t.Cleanup(release)
	_, err := conn.Exec(ctx, "BEGIN")
	require.NoError(t, err)
	_, err = conn.Exec(ctx, statement, args...)
	require.NoError(t, err)
	return release
}

// queryNumber runs a query for one number.
func queryNumber(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	query(t, func(r pgx.Rows) { require.NoError(t, r.Scan(&n)) }, sql, args...)
	return n
}

// expireLease backdates the lease of a task so that the reclaimer considers it stale.
func expireLease(t *testing.T, taskID string) {
	t.Helper()
	query(t, nil, "UPDATE node_tasks SET lease_until = now() - interval '1 minute' WHERE task_id = $1", taskID)
}

// makeHeartbeatDue makes the task's next progress report send a heartbeat, as after
// 30 s.
func makeHeartbeatDue(t *testing.T, taskID string) {
	t.Helper()
	query(t, nil, "UPDATE node_tasks SET beat_at = NULL WHERE task_id = $1", taskID)
}

// callAdminAPI calls the admin API directly, which is faster than hundreds of CLI runs.
func callAdminAPI(t *testing.T, method, path string, body, out any) {
	t.Helper()
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, shared.Getenv("GPUAAS_API_URL")+"/api/v1/admin"+path, content)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+shared.Getenv("GPUAAS_API_TOKEN"))
	req.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, 2, answer.StatusCode/100, "%s %s: %s", method, path, text)
	require.NoError(t, json.Unmarshal(text, out), string(text))
}

// taskEvents counts the audit events of an action on a task.
func taskEvents(t *testing.T, nodeID, taskID, action string) (n int) {
	t.Helper()
	for _, e := range auditEvents(t, nodeID) {
		if e.Target == taskID && e.Action == action {
			n++
		}
	}
	return n
}
