package adminapi_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func (d *backend) ListTemplates(context.Context) ([]template.Template, error) {
	return []template.Template{{Name: "h100", Version: 3}}, nil
}

func (d *backend) Template(_ context.Context, name string) (template.Template, error) {
	return template.Template{Name: name, Version: 3}, nil
}

func (d *backend) SetTemplate(_ context.Context, name string, c template.Change, releases trust.SignedReleases, by audit.Subject) (template.Template, error) {
	d.decided = []any{name, c, releases, by.Actor}
	return template.Template{Name: name, Version: 4}, d.decision
}

func (d *backend) DeleteTemplate(_ context.Context, name, reason string, by audit.Subject) (template.Template, error) {
	d.decided = []any{name, reason, by.Actor}
	return template.Template{Name: name}, d.decision
}

func (d *backend) Drift(_ context.Context, nodeID string) (template.Report, error) {
	return template.Report{NodeID: nodeID, Host: "gpu-1", Status: template.StatusInSync}, nil
}

func (d *backend) FleetDrift(context.Context) (template.Fleet, error) {
	return template.Fleet{Nodes: 2, Counts: []template.Count{}}, nil
}

func TestTemplates(t *testing.T) {
	d := newBackend()
	assert.Contains(t, d.request(t, http.MethodGet, "/templates", "").Body.String(), `{"templates":[{"name":"h100","version":3,`)
	assert.Equal(t, http.StatusOK, d.request(t, http.MethodGet, "/templates/h100", "").Code)
	assert.JSONEq(t, `{"nodes":2,"counts":[]}`, d.request(t, http.MethodGet, "/drift", "").Body.String())
	w := d.request(t, http.MethodGet, "/nodes/gpu-1/drift", "")
	assert.JSONEq(t, `{"node_id":"`+d.node.ID+`","host":"gpu-1","status":"in_sync","drift":false}`, w.Body.String())

	w = d.request(t, http.MethodPut, "/templates/h100", `{"skus":["h100"],"artifacts":{"kernel":"6.8"},"reason":"TCK-12"}`)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Equal(t, []any{"h100", template.Change{Reason: "TCK-12", Definition: template.Definition{SKUs: []string{"h100"},
		Artifacts: map[string]string{"kernel": "6.8"}, Policy: template.PolicyNotify}}, trust.SignedReleases{}, "ops"}, d.decided)
	for body, reason := range map[string]string{"": "", `{"reason":"unused"}`: "unused"} {
		w = d.request(t, http.MethodPost, "/templates/h100/delete", body)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Equal(t, []any{"h100", reason, "ops"}, d.decided)
	}
}

// A policy that upgrades agents has the release of the declared version, which must be known.
func TestTemplateRelease(t *testing.T) {
	d := newBackend()
	d.signed = " signed"
	const proceed = `{"artifacts":{"agent":"v1.4.0"},"policy":"notify_and_proceed"}`
	w := d.request(t, http.MethodPut, "/templates/h100", proceed)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Equal(t, trust.SignedReleases{AMD64: "v1.4.0 signed", ARM64: "v1.4.0 arm64 signed"}, d.decided[2])
	for missing, want := range map[string]trust.SignedReleases{
		trust.ArchAMD64: {ARM64: "v1.4.0 arm64 signed"}, trust.ArchARM64: {AMD64: "v1.4.0 signed"},
	} {
		d.unsigned = []string{missing}
		require.Equal(t, http.StatusOK, d.request(t, http.MethodPut, "/templates/h100", proceed).Code)
		assert.Equal(t, want, d.decided[2], "one architecture is enough")
	}
	d.decided, d.unsigned = nil, []string{trust.ArchAMD64, trust.ArchARM64}
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPut, "/templates/h100", proceed).Code)
	d.unsigned = nil
	d.releaseErr = schema.NewError(schema.KindInvalidRequest, "another key signed it")
	assert.Equal(t, http.StatusBadRequest, d.request(t, http.MethodPut, "/templates/h100", proceed).Code)
	d.decided, d.releaseErr = nil, schema.NewError(schema.KindNotFound, "no release v1.4.0")
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodPut, "/templates/h100", proceed).Code)
	assert.Empty(t, d.decided)
	w = d.request(t, http.MethodPut, "/templates/h100", `{"artifacts":{"agent":"v1.4.0"}}`)
	assert.Equal(t, http.StatusOK, w.Code, "notify needs no release")
}

func TestTemplateRefusals(t *testing.T) {
	d := newBackend()
	for body, reason := range map[string]string{
		`{}`:                            "bad_artifacts",
		`{"artifacts":{"a b":"1"}}`:     "bad_artifacts",
		`{"artifacts":{"a":"1"},"x":1}`: "malformed_body",
		`{"artifacts":{"a":"1"},"policy":"always"}`: "bad_policy",
		`{"artifacts":{"a":"1"},"reason":"a\nb"}`:   "bad_reason",
	} {
		w := d.request(t, http.MethodPut, "/templates/h100", body)
		assert.Equal(t, http.StatusBadRequest, w.Code, body)
		assert.Equal(t, reason, refusal(t, w).Reason, body)
	}
	assert.Equal(t, "bad_name", refusal(t, d.request(t, http.MethodPut, "/templates/a%20b", `{"artifacts":{"a":"1"}}`)).Reason)
	assert.Equal(t, "bad_reason", refusal(t, d.request(t, http.MethodPost, "/templates/a/delete", `{"reason":"a\nb"}`)).Reason)
	for _, path := range []string{"/templates?limit=1", "/drift?node=a", "/nodes/gpu-1/drift?x=1", "/templates/h100?x=1"} {
		assert.Equal(t, "unknown_parameter", refusal(t, d.request(t, http.MethodGet, path, "")).Reason, path)
	}
	for method, path := range map[string]string{http.MethodGet: "/templates/a%20b", http.MethodPost: "/templates/a%20b/delete"} {
		w := d.request(t, method, path, "")
		assert.Equal(t, http.StatusNotFound, w.Code, path)
		assert.Equal(t, "gpuaas template list", refusal(t, w).Next, path)
	}
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, "/nodes/"+schema.NewID()+"/drift", "").Code)
	assert.Empty(t, d.decided)
}

// A node is also named by the ID of its live instance.
func TestDriftOfInstance(t *testing.T) {
	d := newBackend()
	d.instance.InstanceID, d.instance.NodeID, d.instance.Host = schema.NewID(), d.node.ID, "gpu-1"
	path := "/nodes/" + d.instance.InstanceID + "/drift"
	d.instance.State = lifecycle.InstanceRunning
	w := d.request(t, http.MethodGet, path, "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Contains(t, w.Body.String(), d.node.ID)
	d.instance.State = lifecycle.InstanceTerminated
	w = d.request(t, http.MethodGet, path, "")
	assert.Equal(t, http.StatusNotFound, w.Code)
	assert.Equal(t, "gpuaas node drift gpu-1", refusal(t, w).Next)
	assert.Contains(t, refusal(t, d.request(t, http.MethodGet, "/nodes/"+schema.NewID()+"/drift", "")).Message, "no node")
}
