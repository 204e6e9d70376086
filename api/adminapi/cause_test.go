package adminapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/cause"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// insights answers as a database with one parked drain.
type insights struct {
	adminapi.Insights
	lookback time.Duration
	provider string
	kept     *cause.Report
	err      error
}

func (i *insights) Evidence(_ context.Context, nodeID string, lookback time.Duration) (cause.Evidence, error) {
	i.lookback = lookback
	return cause.Evidence{At: time.Now(), Lookback: lookback, Node: cause.Node{ID: nodeID, Host: "gpu-1"}, Around: cause.Around{Receiving: true},
		Park: cause.Park{Reason: "vault_sealed", Since: time.Now()}}, i.err
}

func (i *insights) Cause(context.Context, string, time.Time) (*cause.Report, error) {
	return i.kept, i.err
}

func (i *insights) Capacity(_ context.Context, sku, region string) ([]insight.Capacity, error) {
	return []insight.Capacity{{SKU: sku, Region: region, Nodes: 1, Free: 1}}, i.err
}

func (i *insights) Durations(_ context.Context, _ lifecycle.Action, provider string) ([]insight.Duration, error) {
	i.provider = provider
	return nil, i.err
}

func TestInsights(t *testing.T) {
	t.Parallel()
	d, of := parked(), &insights{}
	d.status.Operation.Stuck = &lifecycle.Stuck{Reason: "vault_sealed"}
	tokens, err := adminapi.NewTokens(sha256.Sum256([]byte(token)), "ops", "")
	require.NoError(t, err)
	h := adminapi.New(adminapi.Config{Auth: tokens, Nodes: d, Operations: d, Lifecycle: d, Insights: of, Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil },
		Faults: func(*http.Request) []wire.ControlPlaneFault {
			return []wire.ControlPlaneFault{{Component: "vault", Reason: "sealed", Message: "Vault is sealed", Next: "unseal Vault"}}
		}}).Handler()
	get := func(path string, status int, into any) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/admin"+path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, w.Body.String())
		if into != nil {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
		}
	}
	var report cause.Report
	get("/nodes/gpu-1/cause?lookback_hours=2", http.StatusOK, &report)
	require.Equal(t, []any{"vault_sealed", 2, 2 * time.Hour}, []any{report.TopCandidate, report.LookbackHours, of.lookback})
	get("/nodes/gpu-1/cause?lookback_hours=169", http.StatusBadRequest, nil)
	get("/nodes/gpu-1/cause?x=1", http.StatusBadRequest, nil)

	var book insight.Runbook
	get("/nodes/gpu-1/runbook", http.StatusOK, &book)
	require.Equal(t, "unseal Vault", book.Steps[0].Command)
	get("/nodes/gpu-1/runbook?cve=CVE-2026-1234", http.StatusOK, &book)
	require.Len(t, book.Needs, 2)
	get("/nodes/gpu-1/runbook?cve=x%3Brm", http.StatusBadRequest, nil)

	var capacity insight.CapacityList
	get("/capacity?sku=h100&region=fra1", http.StatusOK, &capacity)
	require.Equal(t, []string{"h100", "fra1", "place workloads on the 1 free node"},
		[]string{capacity.Capacity[0].SKU, capacity.Capacity[0].Region, capacity.Capacity[0].Recommendation})

	var durations insight.DurationList
	get("/durations?action=drain", http.StatusOK, &durations)
	require.Equal(t, []any{lifecycle.ActionDrain, "manual", "manual", 0}, []any{durations.Action, durations.Provider, of.provider, len(durations.Durations)})
	get("/durations?action=heartbeat-lost", http.StatusBadRequest, nil)
	get("/durations", http.StatusBadRequest, nil)

	of.kept = &report
	var view wire.OperationView
	get("/operations/"+d.status.Operation.OperationID, http.StatusOK, &view)
	require.Equal(t, "vault_sealed", view.ProbableCause.TopCandidate)

	of.err = schema.NewError(schema.KindServiceUnavailable, "Postgres does not respond")
	for _, path := range []string{"/nodes/gpu-1/cause", "/nodes/gpu-1/runbook", "/capacity", "/durations?action=drain"} {
		get(path, http.StatusServiceUnavailable, nil)
	}
}
