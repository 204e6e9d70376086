package nodeapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// fakeBundles has one reference.
type fakeBundles struct {
	reference, nodeID string
	err               error
	by                []audit.Subject
}

func (f *fakeBundles) check(reference string, by audit.Subject) error {
	f.by = append(f.by, by)
	if reference != f.reference {
		return schema.NewError(schema.KindUnauthenticated, "unknown token").WithReason("token_unknown")
	}
	return f.err
}

func (f *fakeBundles) Fetch(_ context.Context, reference string, by audit.Subject) (trust.BootstrapBundle, error) {
	return trust.BootstrapBundle{NodeID: f.nodeID}, f.check(reference, by)
}

func (f *fakeBundles) Script(_ context.Context, reference string, by audit.Subject) (nodeID, script string, err error) {
	return f.nodeID, "#!/bin/sh\n" + strings.Repeat("# é\n", 4000), f.check(reference, by)
}

const scriptPath, bundlePath = "/internal/v1/bootstrap/script", "/internal/v1/bootstrap"

func TestBootstrapScript(t *testing.T) {
	t.Parallel()
	b := &fakeBundles{reference: "ref", nodeID: schema.NewID()}
	s := newSiteWith(t, &fakeStore{}, func(c *nodeapi.Config) { c.Bundles = b })
	for range 2 {
		a := call(t, s.client(nil), http.MethodPost, s.base+scriptPath, trust.BootstrapRequest{Reference: "ref"}, wire.HeaderCorrelationID, "c-1")
		require.Equal(t, http.StatusOK, a.status, string(a.body))
		assert.Equal(t, "text/x-shellscript; charset=utf-8", a.header.Get("Content-Type"))
		assert.Equal(t, "no-store", a.header.Get("Cache-Control"))
		_, script, err := b.Script(t.Context(), "ref", audit.Subject{})
		require.NoError(t, err)
		assert.Equal(t, script, string(a.body))
	}
	assert.Equal(t, audit.Subject{Actor: "fetch:127.0.0.1", CorrelationID: "c-1"}, b.by[0])
	assert.Contains(t, s.log.String(), b.nodeID)
}

// TestReferencesAreRefusedAlike: a client without a good reference receives the same answers for
// the script and for the bundle, and its requests are limited, counted and recorded in the same
// way.
func TestReferencesAreRefusedAlike(t *testing.T) {
	t.Parallel()
	script, bundle := refusedAt(t, scriptPath), refusedAt(t, bundlePath)
	assert.Equal(t, bundle, script)
	assert.Equal(t, []string{"401 token_unknown", "400 no_package"}, script[:2])
	assert.Contains(t, script, "429 over_remote")
	assert.Contains(t, script, "recorded nodes.fetch_reference_used token_unknown 6")
}

// refusedAt sends requests that are refused until their address is over its limit. It returns
// the answers, and what was counted and recorded.
func refusedAt(t *testing.T, path string) (seen []string) {
	t.Helper()
	recorded := make(chan []nodeapi.RefusedRequests, 1)
	now := time.Now() // nothing refills
	b := &fakeBundles{reference: "ref", err: schema.NewError(schema.KindInvalidRequest, "no package").WithReason("no_package")}
	s, api := newAPI(t, &fakeStore{refused: func(r []nodeapi.RefusedRequests) { recorded <- r }},
		func(c *nodeapi.Config) { c.Bundles, c.RemoteRate, c.Now = b, 2.5, func() time.Time { return now } })
	handler := api.Handler()
	bodies := []string{`{"reference":"x"}`, `{"reference":"ref"}`, `{"reference":"ref","more":1}`, `not JSON`, `{"reference":"` + strings.Repeat("x", wire.MaxBodyBytes) + `"}`}
	for _, body := range append(bodies, slices.Repeat(bodies[:1], 20)...) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		var e schema.ErrorBody
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &e), w.Body.String())
		seen = append(seen, fmt.Sprint(w.Code, " ", e.Error.Reason))
	}
	for _, reason := range []string{"token_unknown", "no_package"} {
		seen = append(seen, fmt.Sprint("counted ", reason, " ", s.metric("gpuaas_unauthenticated_refusals_total", reason)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, api.Run(ctx))
	for _, r := range harness.Receive(t, "the refusals are recorded", recorded) {
		seen = append(seen, fmt.Sprint("recorded ", r.Action, " ", r.Reason, " ", r.Requests))
	}
	slices.Sort(seen[len(bodies)+20:])
	return seen
}

// TestNoBundles: a server without bundles has no scripts.
func TestNoBundles(t *testing.T) {
	t.Parallel()
	s := newSite(t, &fakeStore{})
	for _, path := range []string{scriptPath, bundlePath} {
		a := call(t, s.client(nil), http.MethodPost, s.base+path, trust.BootstrapRequest{Reference: "ref"})
		assert.Equal(t, http.StatusNotFound, a.status, string(a.body))
	}
}
