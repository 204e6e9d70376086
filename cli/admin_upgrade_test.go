package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
)

func TestAdminReplay(t *testing.T) {
	t.Parallel()
	differs := temporal.ReplayedRun{WorkflowID: "node:gpu-17:n1", RunID: "r1", Type: "Drain", Open: true, Reason: "[TMPRL1100] unknown\x1b timer"}
	ended := differs
	ended.Open = false
	unread := temporal.ReplayedRun{WorkflowID: "node:gpu-18:n2", RunID: "r2", Type: "Enroll", Open: true, Reason: "Temporal does not respond"}
	for name, c := range map[string]struct {
		args   []string
		report temporal.ReplayReport
		err    error
		code   int
		want   temporal.ReplayOptions
		out    []string
	}{
		"none differs": {args: []string{"--all-open"}, report: temporal.ReplayReport{Open: 7, Closed: 1}, code: schema.ExitDone,
			want: temporal.ReplayOptions{AllOpen: true, Closed: 10}, out: []string{"version v2 replays 7 open runs and 1 ended run"}},
		"one differs": {args: []string{"--closed", "3"}, report: temporal.ReplayReport{Differing: []temporal.ReplayedRun{differs}}, code: schema.ExitFailed,
			want: temporal.ReplayOptions{Closed: 3},
			out:  []string{"differs", "Drain", "node:gpu-17:n1", "r1", "[TMPRL1100] unknown? timer", "1 operation cannot continue with version v2"}},
		"an ended one differs": {report: temporal.ReplayReport{Differing: []temporal.ReplayedRun{ended}}, code: schema.ExitFailed,
			want: temporal.ReplayOptions{Closed: 10}, out: []string{"node:gpu-17:n1", "1 ended operation differs: only a reset of it cannot continue with version v2"}},
		"one is not checked": {report: temporal.ReplayReport{Unchecked: []temporal.ReplayedRun{unread}}, code: schema.ExitFailed,
			want: temporal.ReplayOptions{Closed: 10}, out: []string{"not checked", "node:gpu-18:n2", "1 operation could not be checked"}},
		"Temporal ends in between": {report: temporal.ReplayReport{Differing: []temporal.ReplayedRun{differs}}, code: schema.ExitUnreachable,
			err:  schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond"),
			want: temporal.ReplayOptions{Closed: 10}, out: []string{"node:gpu-17:n1", "error: Temporal does not respond"}},
		"Temporal is unavailable": {code: schema.ExitUnreachable, err: schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond"),
			want: temporal.ReplayOptions{Closed: 10}, out: []string{"error: Temporal does not respond"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.env.platform.Replay = func(_ context.Context, cfg temporal.Config, o temporal.ReplayOptions) (temporal.ReplayReport, error) {
				require.Equal(t, "temporal:7233", cfg.Address)
				fmt.Fprintln(o.Progress, "replayed 1 of 7 histories")
				o.Progress = nil
				require.Equal(t, c.want, o)
				c.report.Build = "v2"
				return c.report, c.err
			}
			require.Equal(t, c.code, h.run(append([]string{"admin", "replay", "--address", "temporal:7233"}, c.args...)...))
			for _, text := range c.out {
				require.Contains(t, h.out.String()+h.err.String(), text)
			}
			require.Contains(t, h.err.String(), "replayed 1 of 7 histories\n")
		})
	}
}

func TestAdminReplayForPrograms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.env.platform.Replay = func(context.Context, temporal.Config, temporal.ReplayOptions) (temporal.ReplayReport, error) {
		return temporal.ReplayReport{Build: "v2", Open: 1, Differing: []temporal.ReplayedRun{}, Unchecked: []temporal.ReplayedRun{}}, nil
	}
	require.Zero(t, h.run("admin", "replay", "-o", "json"))
	var r temporal.ReplayReport
	require.NoError(t, json.Unmarshal(h.out.Bytes(), &r))
	require.Equal(t, 1, r.Open)
	require.Equal(t, schema.ExitUsage, h.run("admin", "replay", "--closed", "-1"))
	h.env.platform.Replay = nil
	require.Equal(t, schema.ExitFailed, h.run("admin", "replay"))
	require.Contains(t, h.err.String(), "has no replay")
}

func TestAdminPromote(t *testing.T) {
	t.Parallel()
	h := setup(t)
	current := "v1"
	h.env.platform.Build = "v2"
	h.env.platform.Promote = func(_ context.Context, _ temporal.Config, build string) (string, error) {
		if build == "v3" {
			return current, schema.NewError(schema.KindInvalidRequest, "no worker of version v3 polls Temporal").WithNext("start a gpuaas-worker")
		}
		before := current
		current = build
		return before, nil
	}
	for _, c := range []struct {
		args []string
		out  string
	}{
		{nil, "current: version v2\nbefore:  version v1\n"},
		{nil, "current: version v2\n"},
		{[]string{"--to", "v1"}, "current: version v1\nbefore:  version v2\n"},
		{[]string{"--to", "unversioned"}, "current: unversioned workers\nbefore:  version v1\n"},
		{[]string{"-o", "json"}, "{\n  \"current\": \"v2\",\n  \"before\": \"\"\n}\n"},
	} {
		require.Zero(t, h.run(append([]string{"admin", "promote"}, c.args...)...))
		require.Equal(t, c.out, h.out.String())
	}
	require.Equal(t, schema.ExitRefused, h.run("admin", "promote", "--to", "v3"))
	require.Contains(t, h.err.String(), "next:  start a gpuaas-worker")
	h.env.platform.Promote = nil
	require.Equal(t, schema.ExitFailed, h.run("admin", "promote"))
}
