package server

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestLists(t *testing.T) {
	r := newCluster(t).replica()
	assert.JSONEq(t, `{"nodes":[]}`, string(r.ask(http.MethodGet, "/nodes", nil).body))
	assert.JSONEq(t, `{"operations":[]}`, string(r.ask(http.MethodGet, "/operations", nil).body))
	m := r.enrolled()
	r.operate(m.id, lifecycle.ActionRetire, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired})
	r.register()
	var nodes wire.NodeList
	r.ask(http.MethodGet, "/nodes", nil).into(t, &nodes)
	assert.Len(t, nodes.Nodes, 2)

	var ops wire.OperationList
	r.ask(http.MethodGet, "/operations?node="+r.show(m.id).Host, nil).into(t, &ops)
	require.Len(t, ops.Operations, 2)
	assert.Equal(t, lifecycle.ActionRetire, ops.Operations[0].Action, "newest first")
	r.ask(http.MethodGet, "/operations?open=true", nil).into(t, &ops)
	assert.Empty(t, ops.Operations)

	var streams wire.AuditStreamList
	r.ask(http.MethodGet, "/audit/streams", nil).into(t, &streams)
	assert.Contains(t, streams.Streams, m.id)
	var page wire.AuditStreamPage
	r.ask(http.MethodGet, "/audit/streams/"+m.id+"?after=1&limit=2", nil).into(t, &page)
	require.Len(t, page.Events, 2)
	assert.Equal(t, int64(2), page.Events[0].Seq)
	assert.True(t, page.More)
	r.ask(http.MethodGet, "/audit/streams/"+m.id+"?after=3&limit=1000", nil).into(t, &page)
	assert.False(t, page.More)
	for _, path := range []string{"/nodes/unknown", "/nodes/" + schema.NewID(), "/audit?node=unknown", "/operations?node=unknown", "/nodes/a%20b"} {
		a := r.ask(http.MethodGet, path, nil)
		assert.Equal(t, http.StatusNotFound, a.status, path)
		assert.Equal(t, schema.KindNotFound, a.refusal(t).Code)
	}
}

// A SKU is added and deactivated by plain HTTP requests, and the registration follows.
func TestSKUCatalogByHTTP(t *testing.T) {
	r := newCluster(t).replica()
	const b200, node = `{"name":"b200","gpu_model":"B200","max_gpus":8,"min_cpus":64}`, `{"host":"gpu-b","sku":"b200","region_code":"r"}`
	for range 2 {
		a := r.ask(http.MethodPost, "/skus", b200)
		assert.Equal(t, http.StatusCreated, a.status, string(a.body))
	}
	a := r.ask(http.MethodPost, "/skus", `{"name":"b200","min_cpus":1}`)
	assert.Equal(t, http.StatusConflict, a.status)
	assert.Equal(t, schema.KindAlreadyExists, a.refusal(t).Code)
	assert.Equal(t, http.StatusCreated, r.ask(http.MethodPost, "/nodes", node).status)
	assert.Equal(t, http.StatusOK, r.ask(http.MethodPost, "/skus/b200/deactivate", nil).status)
	a = r.ask(http.MethodPost, "/nodes", `{"host":"gpu-c","sku":"b200","region_code":"r"}`)
	assert.Equal(t, "sku_inactive", a.refusal(t).Reason)
	assert.Equal(t, "gpuaas sku list --active", a.refusal(t).Next)
	var list inventory.SKUList
	r.ask(http.MethodGet, "/skus?active=false", nil).into(t, &list)
	assert.Equal(t, []inventory.SKU{{Name: "b200", GPUModel: "B200", MaxGPUs: 8, MinCPUs: 64}}, list.SKUs)
	assert.Equal(t, []string{"skus.add succeeded", "skus.add refused", "skus.deactivate succeeded", "nodes.register refused"}, r.audit("system")[1:], "after the verifier set")
	assert.Equal(t, http.StatusNotFound, r.ask(http.MethodGet, "/skus/none", nil).status)
}

func TestRegistrationRefusals(t *testing.T) {
	r := newCluster(t).replica()
	taken := r.register()
	for reason, body := range map[string]string{
		"sku_unknown":         `{"host":"a","sku":"tpu","region_code":"r"}`,
		"sku_mismatch":        `{"host":"a","sku":"h100","region_code":"r","gpus_total":9}`,
		"host_taken":          `{"host":"` + taken.Host + `","sku":"cpu-dev","region_code":"r"}`,
		"bad_host":            `{"host":"<NODE_IP>","sku":"cpu-dev","region_code":"r"}`,
		"bad_sku":             `{"host":"a","region_code":"r"}`,
		"bad_region_code":     `{"host":"a","sku":"cpu-dev"}`,
		"bad_gpus_total":      `{"host":"a","sku":"cpu-dev","region_code":"r","gpus_total":-1}`,
		"bad_port":            `{"host":"a","sku":"cpu-dev","region_code":"r","port":70000}`,
		"bad_lifecycle_class": `{"host":"a","sku":"cpu-dev","region_code":"r","lifecycle_class":"eternal"}`,
		"bad_ssh_public_key":  `{"host":"a","sku":"cpu-dev","region_code":"r","ssh_public_key":"-----BEGIN OPENSSH PRIVATE KEY-----"}`,
		"malformed_body":      `{"host":"a","sku":"cpu-dev","region_code":"r","sku_id":"7"}`,
	} {
		a := r.ask(http.MethodPost, "/nodes", body)
		assert.Equal(t, http.StatusBadRequest, a.status, reason)
		assert.Equal(t, reason, a.refusal(t).Reason)
	}
	// A mode without a provider is a mistake of the caller: a retry does not help.
	for _, mode := range []string{"maas", "libvirt", "manaul"} {
		a := r.ask(http.MethodPost, "/nodes", `{"host":"a","sku":"cpu-dev","region_code":"r","onboarding_mode":"`+mode+`"}`)
		assert.Equal(t, http.StatusBadRequest, a.status)
		assert.Equal(t, schema.KindInvalidRequest, a.refusal(t).Code)
		assert.Equal(t, "no_adapter", a.refusal(t).Reason)
		assert.Equal(t, `onboarding_mode: there is no provider "`+mode+`"`, a.refusal(t).Message)
		assert.Equal(t, "gpuaas provider list", a.refusal(t).Next)
		var list wire.AuditStreamPage
		r.ask(http.MethodGet, "/audit/streams/system?limit=1000", nil).into(t, &list)
		assert.True(t, slices.ContainsFunc(list.Events, func(e audit.Event) bool {
			return e.Action == "nodes.register" && e.Result == audit.Refused && e.Reason == "no_adapter" && e.Detail["onboarding_mode"] == mode
		}), "the refusal of %s is audited", mode)
	}
}

func TestLifecycleRefusals(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	work := wire.Heartbeat{Phase: wire.PhaseReady, At: time.Now(), Workloads: []task.Workload{{Name: "train", Kind: "process", Since: time.Now()}}}
	require.Equal(t, http.StatusNoContent, r.report(m, work).status)
	for _, c := range []struct {
		path, body string
		status     int
		kind       schema.Kind
	}{
		{"/nodes/" + m.id + "/retire", "", 409, schema.KindNodeInUse},
		{"/nodes/" + r.show(m.id).Host + "/remove", "", 400, schema.KindInvalidRequest},
		{"/nodes/" + schema.NewID() + "/drain", "", 404, schema.KindNotFound},
		{"/nodes/" + m.id + "/reissue-enrollment", `{"options":{"drain":true}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/bootstrap-script", "", 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/explode", "", 404, schema.KindNotFound},
		{"/nodes/" + m.id + "/drain", `{"options":{"drain":true}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/retire", `{"options":{"cordon_only":true}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/retire", `{"options":{"drain_timeout_seconds":5}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/drain", `{"options":{"drain_timeout_seconds":-5}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/drain", `{"options":{"machine":{"region":"fra1"}}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/provision", `{"options":{"machine":{"type":"a b"}}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/drain", `{"options":{"agent_version":"v2.0.0"}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/upgrade-agent", "", 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/upgrade-agent", `{"options":{"agent_version":"v2.0.0"}}`, 400, schema.KindInvalidRequest}, // no releases
		{"/nodes/" + m.id + "/upgrade-agent", `{"options":{"agent_version":"v2.0.0","release":"{}"}}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/drain", `{"reason":"a\nb"}`, 400, schema.KindInvalidRequest},
		{"/nodes/" + m.id + "/drain", `{"why":"x"}`, 400, schema.KindInvalidRequest},
	} {
		a := r.ask(http.MethodPost, c.path, c.body)
		assert.Equal(t, c.status, a.status, "%s %s: %s", c.path, c.body, a.body)
		assert.Equal(t, c.kind, a.refusal(t).Code)
	}
	first := r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", `{"reason":"RMA-4411","options":{"drain_timeout_seconds":60}}`)
	assert.Equal(t, http.StatusAccepted, first.status, string(first.body))
	second := r.ask(http.MethodPost, "/nodes/"+m.id+"/drain", "")
	assert.Equal(t, http.StatusConflict, second.status)
	assert.Equal(t, schema.KindOperationInProgress, second.refusal(t).Code)
}

func TestBearerToken(t *testing.T) {
	r := newCluster(t).replica()
	for _, headers := range [][]string{
		nil, {"Authorization", ""}, {"Authorization", "Bearer"}, {"Authorization", "Bearer "}, {"Authorization", "Bearer " + adminToken + "x"},
		{"Authorization", "Basic " + adminToken}, {"Authorization", adminToken},
		{"Authorization", "Bearer " + adminToken, "Authorization", "Bearer " + adminToken},
	} {
		for _, path := range []string{"/nodes", "/audit", "/operations", "/nodes/x"} {
			a, err := send(t.Context(), http.DefaultClient, http.MethodGet, r.admin+path, nil, headers...)
			require.NoError(t, err)
			assert.Equal(t, http.StatusUnauthorized, a.status, "%v", headers)
			assert.Equal(t, schema.KindUnauthenticated, a.refusal(t).Code)
			assert.NotEmpty(t, a.header.Get("WWW-Authenticate"))
		}
	}
	a, err := send(t.Context(), http.DefaultClient, http.MethodGet, r.admin+"/nodes", nil, "Authorization", "bearer "+adminToken)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, a.status)
	assert.NotContains(t, r.log.String(), adminToken)
}
