package temporal

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// startBuild starts a worker of a build, "" for one without versioning. Its workflow
// returns the build that completes it, after a signal. The query build names the one that
// answers.
func startBuild(t *testing.T, c *Client, build string) worker.Worker {
	t.Helper()
	o := worker.Options{}
	if build != Unversioned {
		o.DeploymentOptions = Versioned(build)
	}
	w := worker.New(c.sdk, lifecycle.TaskQueue, o)
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context) (string, error) {
		if err := workflow.SetQueryHandler(ctx, "build", func() (string, error) { return build, nil }); err != nil {
			return "", err
		}
		workflow.GetSignalChannel(ctx, "end").Receive(ctx, nil)
		return build, nil
	}, workflow.RegisterOptions{Name: "waits"})
	require.NoError(t, w.Start())
	t.Cleanup(w.Stop)
	harness.Eventually(t, "a poll of "+VersionName(build), func() bool {
		r, err := c.Deployments.Routing(t.Context(), PollerFresh)
		return err == nil && r.Polls(build)
	})
	return w
}

// promote promotes a build. A version whose first poll was just received may not be
// registered yet. A promotion whose response was late took effect, so that the build is
// current when it is promoted again.
func promote(t *testing.T, c *Client, build, before string) {
	t.Helper()
	possible := []string{before}
	harness.Eventually(t, "the promotion of "+VersionName(build), func() bool {
		was, err := c.Deployments.Promote(t.Context(), build)
		if err != nil {
			require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "%v", err)
			t.Logf("promoting %s: %v", VersionName(build), err)
			possible = []string{before, build}
			return false
		}
		require.Contains(t, possible, was)
		return true
	})
	harness.Eventually(t, "the routing", func() bool {
		r, err := c.Deployments.Routing(t.Context(), PollerFresh)
		return err == nil && r.Receives(build)
	})
}

// TestPromote moves an open run from unversioned workers to a version, on to the next
// one, and back.
func TestPromote(t *testing.T) {
	c := connect(t)
	ctx := t.Context()
	_, err := c.Deployments.Promote(ctx, "v1")
	require.Equal(t, "version_not_polling", schema.AsError(err).Reason)
	require.ErrorContains(t, err, "workers of these versions do: none")

	startBuild(t, c, Unversioned)
	started := func() client.WorkflowRun {
		run, err := c.sdk.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: lifecycle.TaskQueue}, "waits")
		require.NoError(t, err)
		return run
	}
	end := func(run client.WorkflowRun, want string) {
		t.Helper()
		harness.Eventually(t, "all partitions of the task queue route to "+VersionName(want), func() bool {
			for range 12 {
				var build string
				answer, err := c.sdk.QueryWorkflow(ctx, run.GetID(), "", "build")
				if err != nil || answer.Get(&build) != nil || build != want {
					return false
				}
			}
			return true
		})
		require.NoError(t, c.sdk.SignalWorkflow(ctx, run.GetID(), "", "end", nil))
		var by string
		require.NoError(t, run.Get(ctx, &by))
		require.Equal(t, want, by)
	}
	first, second, third := started(), started(), started()
	startBuild(t, c, "v1")
	_, err = c.Deployments.Promote(ctx, "v3")
	require.ErrorContains(t, err, "workers of these versions do: (unversioned), v1")
	end(started(), Unversioned)

	promote(t, c, "v1", Unversioned)
	end(first, "v1")
	startBuild(t, c, "v2")
	promote(t, c, "v2", "v1")
	end(second, "v2")
	promote(t, c, "v1", "v2")
	promote(t, c, "v1", "v1")
	promote(t, c, Unversioned, "v1")
	end(third, Unversioned)

	require.NoError(t, c.Deployments.TakeOver(ctx, "v2"))
	r, err := c.Deployments.Routing(ctx, PollerFresh)
	require.NoError(t, err)
	require.Equal(t, Routing{Current: "v2", Polling: []string{"", "v1", "v2"}}, r)
	r, err = c.Deployments.Routing(ctx, 0)
	require.NoError(t, err)
	require.Empty(t, r.Polling, "no poll is that recent")
	harness.Eventually(t, "v1 counts as current before", func() bool {
		r, err := c.Deployments.Routing(ctx, 0)
		return err == nil && slices.Contains(r.Served, "v1") && !slices.Contains(r.Served, "v2") && !r.MayTakeOver("v1")
	})
}
