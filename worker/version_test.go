package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/test/harness"
)

// fakeRouter is a router in memory.
type fakeRouter struct {
	now       temporal.Routing
	fault     error // of TakeOver
	takeovers []string
}

func (f *fakeRouter) Routing(context.Context, time.Duration) (temporal.Routing, error) {
	return f.now, nil
}

func (f *fakeRouter) TakeOver(_ context.Context, build string) error {
	if f.fault == nil {
		f.takeovers = append(f.takeovers, build)
		f.now.Current = build
	}
	return f.fault
}

// TestTakeOver: a worker takes over only if no worker of the current build is left.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		build string
		now   temporal.Routing
		want  bool
		log   string
	}{
		"a new installation":                 {"v1", temporal.Routing{Polling: []string{"v1"}}, true, "this version receives work"},
		"unversioned workers are left":       {"v1", temporal.Routing{Polling: []string{"", "v1"}}, false, "standby"},
		"it is current":                      {"v1", temporal.Routing{Current: "v1", Polling: []string{"v1"}}, false, "this version receives work"},
		"it is current, its poll is late":    {"v1", temporal.Routing{Current: "v1"}, false, "this version receives work"},
		"workers of the current are left":    {"v2", temporal.Routing{Current: "v1", Polling: []string{"v1", "v2"}}, false, "standby"},
		"none is left":                       {"v2", temporal.Routing{Current: "v1", Polling: []string{"v2"}}, true, "this version receives work"},
		"it ramps":                           {"v2", temporal.Routing{Current: "v1", Ramping: "v2", Polling: []string{"v2"}}, false, "this version receives work"},
		"unversioned after versioned":        {"", temporal.Routing{Current: "v1", Polling: []string{""}}, true, "this version receives work"},
		"unversioned beside versioned":       {"", temporal.Routing{Current: "v1", Polling: []string{"", "v1"}}, false, "standby"},
		"unversioned, nothing was versioned": {"", temporal.Routing{Polling: []string{""}}, false, "this version receives work"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &harness.Buffer{}
			f := &fakeRouter{now: c.now}
			v := newVersions(f, c.build, slog.New(slog.NewTextHandler(log, nil)))
			require.Error(t, v.Healthy(t.Context()), "nothing is known yet")
			require.NoError(t, v.check(t.Context()))
			require.NoError(t, v.Healthy(t.Context()))
			require.Equal(t, c.want, len(f.takeovers) == 1)
			require.Contains(t, log.String(), c.log)
			before := log.String()
			require.NoError(t, v.check(t.Context()))
			require.Equal(t, before, log.String(), "an unchanged routing is not logged again")
		})
	}
}

// TestNoTakeOverByAnEarlierBuild: the workers of the current build are unavailable for a while,
// and a standby of the build before is left. It does not become current again, and it is
// not ready until the current build is back or a person promotes it.
func TestNoTakeOverByAnEarlierBuild(t *testing.T) {
	t.Parallel()
	f := &fakeRouter{now: temporal.Routing{Current: "v2", Polling: []string{"v1"}, Served: []string{"v1"}}}
	v := newVersions(f, "v1", slog.New(slog.DiscardHandler))
	require.Error(t, v.check(t.Context()))
	require.Empty(t, f.takeovers)
	err := schema.AsError(v.Healthy(t.Context()))
	require.Equal(t, "current_version_away", err.Reason)
	require.Contains(t, err.Next, promoteCommand+" --to v1")
	f.now.Polling = []string{"v1", "v2"}
	require.NoError(t, v.check(t.Context()))
	require.NoError(t, v.Healthy(t.Context()), "a standby")
	require.Empty(t, f.takeovers)
	f.now = temporal.Routing{Current: "v2", Polling: []string{"v3"}, Served: []string{"v1"}}
	v = newVersions(f, "v3", slog.New(slog.DiscardHandler))
	require.NoError(t, v.check(t.Context()))
	require.Equal(t, []string{"v3"}, f.takeovers, "a newer build takes over")
}

// TestTakeOverFails: a worker that cannot take over is not ready and names the command.
func TestTakeOverFails(t *testing.T) {
	t.Parallel()
	f := &fakeRouter{now: temporal.Routing{Current: "v1"}, fault: schema.NewError(schema.KindServiceUnavailable, "no such version")}
	v := newVersions(f, "v2", slog.New(slog.DiscardHandler))
	require.Error(t, v.check(t.Context()))
	err := schema.AsError(v.Healthy(t.Context()))
	require.Equal(t, promoteCommand, err.Next)
	require.ErrorContains(t, err, "no worker receives work, and version v2 cannot take over")
	f.fault = nil
	require.NoError(t, v.check(t.Context()))
	require.NoError(t, v.Healthy(t.Context()))
}

func TestBuildID(t *testing.T) {
	t.Parallel()
	commit := "0123456789abcdef0123"
	require.Equal(t, "v0.2.0", buildID(version.Build{Version: "v0.2.0", Commit: commit}))
	require.Equal(t, "dev-0123456789ab", buildID(version.Build{Version: "dev", Commit: commit}))
	require.Equal(t, "dev-0123456789ab-dirty", buildID(version.Build{Version: "dev", Commit: commit, Modified: true}))
	require.Equal(t, "dev", buildID(version.Build{Version: "dev"}))
}

func TestOptions(t *testing.T) {
	t.Parallel()
	c := defaults()
	c.Versioning = true
	o := options(c, 10, nil)
	require.Equal(t, BuildID(), o.DeploymentOptions.Version.BuildID)
	require.Regexp(t, `^[^/]+/.+/\d+$`, o.Identity)
	c.Versioning = false
	require.Zero(t, options(c, 10, nil).DeploymentOptions)
	require.Equal(t, temporal.Unversioned, c.build())
}
