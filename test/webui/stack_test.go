// Package webui tests Temporal's Web UI in a browser, as the place where operators look at
// parked operations: the page of a run says why it is parked and how to continue. It
// starts a development stack and Chromium (sh tools/need-chromium.sh), and needs bin/
// (./task build). With -short it runs no test.
//
// With -pictures it writes the screenshots of docs/on-call.md.
package webui

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/activity/v1"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	devstack "github.com/gpuaas/gpuaas/test/stack"
)

// conditionTimeout bounds the wait for a condition on a busy machine.
const conditionTimeout = 2 * time.Minute

var (
	pictures = flag.Bool("pictures", false, "write the screenshots of docs/on-call.md")
	// stack and browser are set by TestMain before any test runs and never again.
	stack   *devstack.Stack
	browser context.Context
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		return // go test reports that no test ran
	}
	code, err := withStack(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "webui:", err)
		code = 1
	}
	os.Exit(code)
}

func withStack(m *testing.M) (code int, err error) {
	path := findChromium()
	if path == "" {
		return 1, errors.New("no Chromium found; run sh tools/need-chromium.sh")
	}
	bin, err := filepath.Abs("../../bin/gpuaas")
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "gpuaas-webui-")
	if err != nil {
		return 1, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another user
		return 1, err
	}
	up, upErr := devstack.Up(context.Background(), bin, filepath.Join(dir, "dev"))
	defer func() { err = errors.Join(err, up.Down(), os.RemoveAll(dir)) }()
	if upErr != nil {
		return 1, upErr
	}
	stack = up
	tab, stop, err := startBrowser(path, filepath.Join(dir, "browser"))
	defer stop()
	if err != nil {
		return 1, err
	}
	browser = tab
	return m.Run(), nil
}

// gpuaas runs the CLI and returns its output.
func gpuaas(t *testing.T, args ...string) string {
	t.Helper()
	out, err := stack.Command(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, "gpuaas %s\n%s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

func show(t *testing.T, host string) (v wire.NodeView) {
	t.Helper()
	out, err := stack.Command(t.Context(), "node", "show", host, "-o", "json").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &v))
	return v
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, conditionTimeout, 200*time.Millisecond, what)
}

// node registers a node, starts its agent and waits until it is active.
func node(t *testing.T, host, sku string) {
	t.Helper()
	gpuaas(t, "node", "register", host, "--sku", sku, "--region", "region-1")
	gpuaas(t, "dev", "agent", host, "--detach", "--dir", stack.Dir)
	eventually(t, "the node becomes active", func() bool { return show(t, host).State == lifecycle.NodeActive })
}

// workload starts a workload that ends when the gate file exists, not at a signal.
func workload(t *testing.T, host string) (gate string) {
	t.Helper()
	gate = filepath.Join(t.TempDir(), "go")
	t.Cleanup(func() { _ = os.WriteFile(gate, nil, 0o600) }) // stopping the stack waits for workloads
	spec, err := json.Marshal(map[string]any{"command": []string{"sh", "-c", `trap : TERM; while [ ! -e ` + gate + ` ]; do sleep 0.1; done`}})
	require.NoError(t, err)
	file := filepath.Join(stack.Dir, "agents", host, "workloads", "job-1.json")
	require.NoError(t, os.WriteFile(file+".tmp", spec, 0o600))
	require.NoError(t, os.Rename(file+".tmp", file))
	eventually(t, "the agent reports the workload", func() bool { return len(show(t, host).Workloads) == 1 })
	return gate
}

// killAgent kills the node's agent.
func killAgent(t *testing.T, host string) {
	t.Helper()
	parts, err := stack.Parts(t.Context())
	require.NoError(t, err)
	pid := parts["agent/"+host].PID
	require.Positive(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

// exec runs a statement in the stack's database.
func exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	dsn, err := os.ReadFile(filepath.Join(stack.Dir, "secrets", "database-url"))
	require.NoError(t, err)
	db, err := pgx.Connect(t.Context(), strings.TrimSpace(string(dsn)))
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
}

// parked waits until the node's operation is parked, and opens its page.
func parked(t *testing.T, host, reason string) (*page, lifecycle.Stuck) {
	t.Helper()
	var op wire.StuckOperation
	eventually(t, host+" parks", func() bool {
		out, err := stack.Command(t.Context(), "stuck", "-o", "json").Output()
		var list wire.StuckList
		if err != nil || json.Unmarshal(out, &list) != nil {
			return false
		}
		for _, o := range list.Stuck {
			if o.Host == host {
				op = o
				return o.Stuck != nil && o.Stuck.Reason == reason
			}
		}
		return false
	})
	return open(t, op.WebURL), *op.Stuck
}

func writeFile(path string) error { return os.WriteFile(path, nil, 0o600) }

// dial connects to the stack's Temporal.
func dial(t *testing.T) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: stack.Getenv("TEMPORAL_ADDRESS"), Namespace: stack.Getenv("TEMPORAL_NAMESPACE")})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// soon ends the time limit of the run's pending activity within a second.
func soon(run *common.WorkflowExecution) *workflowservice.UpdateActivityOptionsRequest {
	return &workflowservice.UpdateActivityOptionsRequest{
		Namespace: stack.Getenv("TEMPORAL_NAMESPACE"), Execution: run, Identity: "a person",
		Activity:        &workflowservice.UpdateActivityOptionsRequest_MatchAll{MatchAll: true},
		ActivityOptions: &activity.ActivityOptions{ScheduleToCloseTimeout: durationpb.New(time.Second)},
		UpdateMask:      &fieldmaskpb.FieldMask{Paths: []string{"schedule_to_close_timeout"}},
	}
}
