package harness

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	activitypb "go.temporal.io/api/activity/v1"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/gpuaas/gpuaas/test/stack"
)

// commandEvery is how often a condition is checked that starts a process.
const commandEvery = 250 * time.Millisecond

// Connect connects to the stack's Postgres.
func Connect(ctx context.Context, tb testing.TB, s *stack.Stack) *pgx.Conn {
	tb.Helper()
	url, err := os.ReadFile(filepath.Join(s.Dir, "secrets", "database-url"))
	require.NoError(tb, err)
	conn, err := pgx.Connect(ctx, strings.TrimSpace(string(url)))
	require.NoError(tb, err)
	return conn
}

// Query runs a query on the stack's Postgres, and read for each row of its result. Without
// read it runs statements. It connects each time, because tests restart the server.
func Query(tb testing.TB, s *stack.Stack, read func(pgx.Rows), sql string, args ...any) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Timeout) // cleanups use it
	defer cancel()
	conn := Connect(ctx, tb, s)
	defer func() { _ = conn.Close(ctx) }() // the statements are done
	if read == nil {
		_, err := conn.Exec(ctx, sql, args...)
		require.NoError(tb, err)
		return
	}
	rows, err := conn.Query(ctx, sql, args...)
	require.NoError(tb, err)
	defer rows.Close()
	for rows.Next() {
		read(rows)
	}
	require.NoError(tb, rows.Err())
}

// Kill kills a part of the stack with SIGKILL and waits until it is dead.
func Kill(tb testing.TB, s *stack.Stack, name string) {
	tb.Helper()
	part := func() stack.Part {
		parts, err := s.Parts(tb.Context())
		require.NoError(tb, err)
		return parts[name]
	}
	pid := part().PID
	require.Positive(tb, pid, "%s does not run", name)
	require.NoError(tb, syscall.Kill(pid, syscall.SIGKILL))
	Poll(tb, func() bool { return !part().Healthy }, Timeout, commandEvery, name+" is dead")
}

// AgentDir is the folder of a node's agent.
func AgentDir(s *stack.Stack, host string) string { return filepath.Join(s.Dir, "agents", host) }

// StartWorkload gives a node a workload, which its agent starts. The test's end kills the
// workload if it still runs, because stopping the stack waits for workloads.
func StartWorkload(tb testing.TB, s *stack.Stack, host, name string, command ...string) {
	tb.Helper()
	spec, err := json.Marshal(map[string]any{"command": command})
	require.NoError(tb, err)
	file := filepath.Join(AgentDir(s, host), "workloads", name)
	require.NoError(tb, os.WriteFile(file+".json.tmp", spec, 0o600))
	require.NoError(tb, os.Rename(file+".json.tmp", file+".json"))
	tb.Cleanup(func() {
		var state struct {
			Phase string `json:"phase"`
			PID   int    `json:"pid"`
		}
		raw, err := os.ReadFile(file + ".state")
		if err == nil && json.Unmarshal(raw, &state) == nil && state.Phase == "running" && state.PID > 1 {
			_ = syscall.Kill(-state.PID, syscall.SIGKILL) // it may have exited since
		}
	})
}

// Activities are the pending activities of a type, "" for any, of a workflow's newest run.
type Activities struct {
	Namespace, WorkflowID, Type string
}

// Change changes an option of the activities, as an operator of Temporal can. It is an error
// if there are none.
func (a Activities) Change(ctx context.Context, c client.Client, option string, to *activitypb.ActivityOptions) error {
	r := &workflowservice.UpdateActivityOptionsRequest{Namespace: a.Namespace,
		Execution: &commonpb.WorkflowExecution{WorkflowId: a.WorkflowID}, Identity: "a person",
		Activity:        &workflowservice.UpdateActivityOptionsRequest_Type{Type: a.Type},
		ActivityOptions: to, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{option}}}
	if a.Type == "" {
		r.Activity = &workflowservice.UpdateActivityOptionsRequest_MatchAll{MatchAll: true}
	}
	_, err := c.WorkflowService().UpdateActivityOptions(ctx, r)
	return err
}
