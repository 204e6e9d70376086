// Package webui tests Temporal's Web UI in a browser, as the place where operators look at
// parked operations: a list that people can read, and the page of a run, which says why it
// is parked and how to continue. It starts a development stack and Chromium (sh
// tools/need-chromium.sh), and needs bin/ (./task build). With -short, only the tests of
// docs/on-call.md run.
//
// With -args -screenshots docs/images it writes the screenshots of docs/on-call.md.
package webui

import (
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
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

var (
	screenshots = flag.String("screenshots", "", "write screenshots to this `folder`, relative to the repository")
	// stack, temporal, browser, provider and settings are set by TestMain before any test runs and never again.
	stack    *stacktest.Stack
	temporal client.Client
	browser  *browsertest.Browser
	provider *cloud
	// settings are the variables with which the stack was started.
	settings []string
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Parallel tests mostly wait, so the number of processors does not limit them.
	if err := flag.Set("test.parallel", "24"); err != nil {
		panic(err)
	}
	os.Exit(stacktest.Suite{Name: "webui", Before: startProvider, Use: useStack}.Main(m))
}

// startProvider starts the double of a provider for the worker.
func startProvider(folder string) (env []string, err error) {
	provider = openCloud()
	settings, err = provider.settings(folder)
	return settings, err
}

// useStack connects to Temporal and starts the browser.
func useStack(s *stacktest.Stack) (end func(), err error) {
	stack = s
	temporal, err = client.Dial(client.Options{HostPort: s.Getenv("TEMPORAL_ADDRESS"), Namespace: s.Getenv("TEMPORAL_NAMESPACE")})
	if err != nil {
		return provider.close, err
	}
	browser, err = browsertest.Start(filepath.Join(s.Folder, "browser"))
	return func() {
		browser.Stop()
		temporal.Close()
		provider.close()
	}, err
}

// killAgent kills the node's agent.
func killAgent(t *testing.T, host string) {
	t.Helper()
	harness.Kill(t, stack.Stack, "agent/"+host)
}

// exec runs statements in the stack's database.
func exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	harness.Query(t, stack.Stack, nil, sql, args...)
}

// fault runs PL/pgSQL before each write to a table that concerns the node: a fault of the
// control plane for one node. heal ends it.
func fault(t *testing.T, host, table, event, body string) {
	t.Helper()
	name := faultOf(host)
	exec(t, fmt.Sprintf(`CREATE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN IF NEW.node_id = '%[2]s' THEN %[5]s END IF; RETURN NEW; END $f$;
CREATE TRIGGER %[1]s BEFORE %[4]s ON %[3]s FOR EACH ROW EXECUTE FUNCTION %[1]s();`, name, stack.Node(t, host).ID, table, event, body))
}

func heal(t *testing.T, host string) {
	t.Helper()
	exec(t, "DROP FUNCTION "+faultOf(host)+" CASCADE")
}

func faultOf(host string) string { return "fault_" + strings.ReplaceAll(host, "-", "_") }

// runOf is the newest run of the node's operation.
func runOf(t *testing.T, host string) *common.WorkflowExecution {
	t.Helper()
	return &common.WorkflowExecution{WorkflowId: lifecycle.NodeWorkflowID(host, stack.Node(t, host).ID)}
}

// pending waits until an activity of the node's operation is pending.
func pending(t *testing.T, host, activityType string) {
	t.Helper()
	run := runOf(t, host)
	stack.Eventually(t, activityType+" is pending", func() bool {
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
	stack.Eventually(t, host+" parks: "+reason, func() bool {
		var list wire.StuckList
		if !stack.Read(t, &list, append([]string{"stuck"}, flags...)...) {
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
