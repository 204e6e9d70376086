// Package webui tests Temporal's Web UI in a browser, as the place where operators look at
// parked operations: a list that people can read, and the page of a run, which says why it
// is parked and how to continue. It starts a development stack and Chromium (sh
// tools/need-chromium.sh), and needs bin/ (./task build). With -short, only the tests of
// docs/on-call.md run.
//
// With -args -screenshots docs/images it writes the screenshots of docs/on-call.md.
package webui

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/activity/v1"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	devstack "github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

const (
	// conditionTimeout bounds the wait for a condition on a busy machine.
	conditionTimeout = 3 * time.Minute
	// conditionEvery is how often a condition is checked, most of which start a process.
	conditionEvery = 500 * time.Millisecond
	root           = "../.."
)

var (
	screenshots = flag.String("screenshots", "", "write screenshots to this `folder`, relative to the repository")
	// stack, temporal, browser, provider and settings are set by TestMain before any test runs and never again.
	stack    *devstack.Stack
	temporal client.Client
	browser  *browsertest.Browser
	provider *cloud
	// settings are the variables with which the stack was started.
	settings []string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *screenshots != "" && !filepath.IsAbs(*screenshots) {
		*screenshots = filepath.Join(root, *screenshots)
	}
	if testing.Short() {
		os.Exit(m.Run())
	}
	// Parallel tests mostly wait, so the number of processors does not limit them.
	err := flag.Set("test.parallel", "24")
	code := 1
	if err == nil {
		code, err = withStack(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "webui:", err)
		code = 1
	}
	os.Exit(code)
}

// needStack skips a test in the short mode.
func needStack(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a stack and Chromium")
	}
}

func withStack(m *testing.M) (code int, err error) {
	bin, err := filepath.Abs(filepath.Join(root, "bin", "gpuaas"))
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
	provider = openCloud()
	defer provider.close()
	if settings, err = provider.settings(dir); err != nil {
		return 1, err
	}
	up, upErr := devstack.UpWith(context.Background(), bin, filepath.Join(dir, "dev"), settings)
	defer func() { err = errors.Join(err, up.Down(), os.RemoveAll(dir)) }()
	if upErr != nil {
		return 1, upErr
	}
	stack = up
	temporal, err = client.Dial(client.Options{HostPort: stack.Getenv("TEMPORAL_ADDRESS"), Namespace: stack.Getenv("TEMPORAL_NAMESPACE")})
	if err != nil {
		return 1, err
	}
	defer temporal.Close()
	browser, err = browsertest.Start(filepath.Join(dir, "browser"))
	defer browser.Stop()
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// gpuaas runs the CLI and returns its output.
func gpuaas(t *testing.T, args ...string) string {
	t.Helper()
	out, err := stack.Command(t.Context(), args...).CombinedOutput()
	require.NoError(t, err, "gpuaas %s\n%s", strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// read runs the CLI and decodes its output. It reports whether that worked.
func read(t *testing.T, into any, args ...string) bool {
	t.Helper()
	out, err := stack.Command(t.Context(), append(args, "-o", "json")...).Output()
	return err == nil && json.Unmarshal(out, into) == nil
}

func show(t *testing.T, host string) (v wire.NodeView) {
	t.Helper()
	require.True(t, read(t, &v, "node", "show", host), "gpuaas node show %s", host)
	return v
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	harness.Poll(t, ok, conditionTimeout, conditionEvery, what)
}

// node registers a node, starts its agent and waits until it is active. The agent's
// process gets the variables, as NAME=value.
func node(t *testing.T, host, sku string, env ...string) {
	t.Helper()
	gpuaas(t, "node", "register", host, "--sku", sku, "--region", "region-1")
	agent := stack.Command(t.Context(), "dev", "agent", host, "--detach", "--dir", stack.Dir)
	agent.Env = append(agent.Env, env...)
	out, err := agent.CombinedOutput()
	require.NoError(t, err, "%s", out)
	eventually(t, host+" becomes active", func() bool { return show(t, host).State == lifecycle.NodeActive })
}

// startWorkload gives the node a workload that ends when the gate file exists, not at a signal.
func startWorkload(t *testing.T, host string) {
	t.Helper()
	harness.StartWorkload(t, stack, host, "job-1", "sh", "-c", `trap : TERM; while [ ! -e `+gateOf(host)+` ]; do sleep 0.1; done`)
}

// workload starts a workload and waits until the agent reports it.
func workload(t *testing.T, host string) {
	t.Helper()
	startWorkload(t, host)
	eventually(t, "the agent reports the workload", func() bool { return len(show(t, host).Workloads) == 1 })
}

func gateOf(host string) string { return filepath.Join(filepath.Dir(stack.Dir), host+".gate") }

// openGate ends the node's workload.
func openGate(t *testing.T, host string) {
	t.Helper()
	require.NoError(t, os.WriteFile(gateOf(host), nil, 0o600))
}

// killAgent kills the node's agent.
func killAgent(t *testing.T, host string) {
	t.Helper()
	harness.Kill(t, stack, "agent/"+host)
}

// exec runs statements in the stack's database.
func exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	harness.Query(t, stack, nil, sql, args...)
}

// fault runs PL/pgSQL before each write to a table that concerns the node: a fault of the
// control plane for one node. heal ends it.
func fault(t *testing.T, host, table, event, body string) {
	t.Helper()
	name := faultOf(host)
	exec(t, fmt.Sprintf(`CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN IF NEW.node_id = '%[2]s' THEN %[5]s END IF; RETURN NEW; END $f$;
CREATE TRIGGER %[1]s BEFORE %[4]s ON %[3]s FOR EACH ROW EXECUTE FUNCTION %[1]s();`, name, show(t, host).ID, table, event, body))
}

func heal(t *testing.T, host string) {
	t.Helper()
	exec(t, "DROP FUNCTION "+faultOf(host)+" CASCADE")
}

func faultOf(host string) string { return "fault_" + strings.ReplaceAll(host, "-", "_") }

// runOf is the newest run of the node's operation.
func runOf(t *testing.T, host string) *common.WorkflowExecution {
	t.Helper()
	return &common.WorkflowExecution{WorkflowId: lifecycle.NodeWorkflowID(host, show(t, host).ID)}
}

// pending waits until an activity of the node's operation is pending.
func pending(t *testing.T, host, activityType string) {
	t.Helper()
	run := runOf(t, host)
	eventually(t, activityType+" is pending", func() bool {
		d, err := temporal.DescribeWorkflowExecution(t.Context(), run.GetWorkflowId(), "")
		require.NoError(t, err)
		return slices.ContainsFunc(d.GetPendingActivities(), func(a *workflow.PendingActivityInfo) bool {
			return a.GetActivityType().GetName() == activityType
		})
	})
}

// expire ends the time limit of the operation's pending activity, as an operator of
// Temporal can, so that the test does not wait for the limit of minutes.
func expire(t *testing.T, host, activityType string) {
	t.Helper()
	pending(t, host, activityType)
	change(t, host, activityType, "schedule_to_close_timeout", &activity.ActivityOptions{ScheduleToCloseTimeout: durationpb.New(time.Second)})
}

// endRetries makes the next failure of the operation's pending activity the last one.
func endRetries(t *testing.T, host, activityType string) {
	t.Helper()
	pending(t, host, activityType)
	change(t, host, activityType, "retry_policy.maximum_attempts", &activity.ActivityOptions{RetryPolicy: &common.RetryPolicy{MaximumAttempts: 1}})
}

// change changes an option of the operation's pending activities of a type, "" for any.
func change(t *testing.T, host, activityType, option string, value *activity.ActivityOptions) {
	t.Helper()
	a := harness.Activities{Namespace: stack.Getenv("TEMPORAL_NAMESPACE"), WorkflowID: runOf(t, host).GetWorkflowId(), Type: activityType}
	require.NoError(t, a.Change(t.Context(), temporal, option, value))
}

// parked waits until the node's operation is parked for the reason.
func parked(t *testing.T, host, reason string, flags ...string) (op wire.StuckOperation) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the operation of %s: %+v: %+v", host, op, op.Stuck)
		}
	}()
	eventually(t, host+" parks: "+reason, func() bool {
		var list wire.StuckList
		if !read(t, &list, append([]string{"stuck"}, flags...)...) {
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
	return op
}

// webURL is the page of a run.
func webURL(workflowID, runID string) string {
	return stack.Getenv("GPUAAS_WEB_UI_URL") + "/namespaces/" + stack.Getenv("TEMPORAL_NAMESPACE") + "/workflows/" + workflowID + "/" + runID + "/timeline"
}
