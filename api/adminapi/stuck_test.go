package adminapi_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// stuckRows has five stuck operations, gpu-0 to gpu-4.
type stuckRows struct {
	adminapi.Operations
	err    error
	counts int
	rows   int // instead of five
}

func (s *stuckRows) ListStuck(_ context.Context, q adminapi.OperationQuery) (ops []wire.StuckOperation, next []string, err error) {
	from := 0
	if len(q.After) > 0 {
		fmt.Sscan(q.After[1], &from) //nolint:errcheck // the key that the page before returned
	}
	for i := from; i < cmp.Or(s.rows, 5); i++ {
		if len(ops) == q.Limit {
			return ops, []string{time.Time{}.Format(time.RFC3339Nano), fmt.Sprint(i)}, s.err
		}
		ops = append(ops, wire.StuckOperation{State: lifecycle.NodeDraining, OperationSummary: wire.OperationSummary{
			Host: fmt.Sprintf("gpu-%d", i), Action: lifecycle.ActionDrain, Status: lifecycle.OperationParked, PriorState: lifecycle.NodeActive,
			Stuck: &lifecycle.Stuck{Reason: "drain_blocked", Next: "gpuaas op extend", Options: make([]lifecycle.Option, 3)}}})
	}
	return ops, nil, s.err
}

// stuckNodes has nodes that need attention.
type stuckNodes struct {
	adminapi.Insights
	nodes []stuck.Node
}

func (s *stuckNodes) ListStuckNodes(context.Context, adminapi.OperationQuery) ([]stuck.Node, int, error) {
	return s.nodes, len(s.nodes) / 2, nil
}

func (s *stuckRows) CountStuck(_ context.Context, q adminapi.OperationQuery) (int, error) {
	s.counts++
	from := 0
	if len(q.After) > 0 {
		fmt.Sscan(q.After[1], &from) //nolint:errcheck // as above
	}
	return 5 - from, nil
}

// TestStuckPages: each page has the number of the operations after it, and the first one
// the faults.
func TestStuckPages(t *testing.T) {
	t.Parallel()
	rows := &stuckRows{}
	probes := 0
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", "")
	require.NoError(t, err)
	h := adminapi.New(adminapi.Config{Auth: tokens, Operations: rows, Lifecycle: newBackend(), Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil },
		Faults: func(*http.Request) []wire.ControlPlaneFault {
			probes++
			return []wire.ControlPlaneFault{{Component: "worker", Reason: "no_pollers"}}
		}}).Handler()
	get := func(query string) (*httptest.ResponseRecorder, wire.StuckList) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/admin/stuck?limit=2"+query, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var list wire.StuckList
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list), w.Body.String())
		return w, list
	}
	_, list := get("")
	require.Equal(t, []any{"gpu-0", 3, 1, 1}, []any{list.Stuck[0].Host, list.More, len(list.Faults), probes})
	_, list = get("&page_token=" + list.NextPageToken)
	require.Equal(t, []any{"gpu-2", 1, 0, 1}, []any{list.Stuck[0].Host, list.More, len(list.Faults), probes})
	w, list := get("&page_token=" + list.NextPageToken)
	require.Equal(t, []any{"gpu-4", 0, 2}, []any{list.Stuck[0].Host, list.More, rows.counts}, "the last page needs no count")
	require.Contains(t, w.Body.String(), `"faults":[]`)

	rows.err = schema.NewError(schema.KindServiceUnavailable, "Postgres does not respond")
	w, _ = get("")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

// TestStuckShowsEndedRuns: the commands of an operation whose run just ended do not work, so
// the list shows the one that does, before the run watcher has marked the operation. It
// does not trust a Temporal that has none of the runs.
func TestStuckShowsEndedRuns(t *testing.T) {
	t.Parallel()
	list := func(rows int, end lifecycle.RunEnd, err error) wire.StuckOperation {
		d := newBackend()
		d.runEnd, d.runErr = end, err
		tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", "")
		require.NoError(t, err)
		h := adminapi.New(adminapi.Config{Auth: tokens, Operations: &stuckRows{rows: rows}, Lifecycle: d,
			Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil }}).Handler()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/admin/stuck", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var list wire.StuckList
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list), w.Body.String())
		return list.Stuck[0]
	}
	unavailable := schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")
	for _, s := range []wire.StuckOperation{list(5, "", nil), list(5, "", unavailable), list(6, lifecycle.RunLost, nil)} {
		require.Equal(t, lifecycle.OperationParked, s.Status)
		require.Equal(t, "gpuaas op extend", s.Stuck.Next)
	}
	for _, s := range []wire.StuckOperation{list(5, lifecycle.RunLost, nil), list(6, lifecycle.RunTerminated, nil)} {
		require.Equal(t, lifecycle.OperationAbandoned, s.Status)
		require.Equal(t, "gpuaas node rehydrate gpu-0", s.Stuck.Next)
		require.Equal(t, s.Stuck.Next, s.Stuck.Options[0].Command)
		require.Len(t, s.Stuck.Options, 1)
		require.Contains(t, s.Stuck.Options[0].Does, "restore the node's state, active")
	}
}

// TestStuckNodesAndRequests: the first page has the nodes and the requests that need attention,
// oldest first, as the filters select them.
func TestStuckNodesAndRequests(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	node := func(host, reason string, minutes int, waiting lifecycle.Attention) stuck.Node {
		return stuck.Node{Host: host, NodeID: host, Stuck: lifecycle.Stuck{Reason: reason, WaitingOn: waiting, Since: at.Add(-time.Duration(minutes) * time.Minute)}}
	}
	d := newBackend()
	waiting := []stuck.Node{node("gpu-2", "not_claimed_yet", 9, lifecycle.AttentionOperator)}
	waiting[0].Action = lifecycle.ActionDrain
	var unavailable error
	rows := &stuckNodes{nodes: []stuck.Node{node("gpu-1", "node_silent", 8, lifecycle.AttentionAgent), node("gpu-3", "drain_long", 40, lifecycle.AttentionOperator)}}
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", "")
	require.NoError(t, err)
	h := adminapi.New(adminapi.Config{Auth: tokens, Operations: &stuckRows{}, Insights: rows, Lifecycle: d, Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil },
		Unclaimed: func(context.Context) ([]stuck.Node, error) { return waiting, unavailable }}).Handler()
	get := func(query string) (hosts []string, list wire.StuckList) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/admin/stuck?limit=2"+query, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list), w.Body.String())
		require.Contains(t, w.Body.String(), `"nodes":[`)
		for _, n := range list.Nodes {
			hosts = append(hosts, n.Host)
		}
		return hosts, list
	}
	hosts, list := get("")
	require.Equal(t, []string{"gpu-3", "gpu-2", "gpu-1"}, hosts)
	require.Equal(t, 1, list.MoreNodes)
	for query, want := range map[string][]string{"&reason=node_silent": {"gpu-1"}, "&waiting_on=operator": {"gpu-3", "gpu-2"}, "&action=drain": {"gpu-2"},
		"&selector=rack%3Dr7": {"gpu-3", "gpu-1"}, "&page_token=" + list.NextPageToken: nil} {
		hosts, _ := get(query)
		require.Equal(t, want, hosts, query)
	}
	unavailable = schema.NewError(schema.KindServiceUnavailable, "Temporal does not respond")
	hosts, _ = get("")
	require.Equal(t, []string{"gpu-3", "gpu-1"}, hosts, "without Temporal the nodes are still listed")
}
