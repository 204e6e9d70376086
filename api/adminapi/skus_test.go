package adminapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func (d *backend) ListSKUs(_ context.Context, q adminapi.SKUQuery) ([]inventory.SKU, []string, error) {
	d.asked = q
	return []inventory.SKU{{Name: "h100", Active: true}}, d.next, nil
}

func (d *backend) SKU(_ context.Context, name string) (inventory.SKU, error) {
	return inventory.SKU{Name: name, Active: true}, nil
}

func (d *backend) AddSKU(_ context.Context, n inventory.NewSKU, by audit.Subject) (inventory.SKU, error) {
	d.decided = []any{n, by.Actor}
	return inventory.SKU{Name: n.Name, Active: true}, d.decision
}

func (d *backend) DeactivateSKU(_ context.Context, name, reason string, by audit.Subject) (inventory.SKU, error) {
	d.decided = []any{name, reason, by.Actor}
	return inventory.SKU{Name: name}, d.decision
}

func TestSKUs(t *testing.T) {
	d := newBackend()
	w := d.request(t, http.MethodPost, "/skus", `{"name":"b200","gpu_model":"B200","max_gpus":8,"min_cpus":64,"min_memory_bytes":1024,"reason":"TCK-12"}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body.String())
	assert.Equal(t, "/api/v1/admin/skus/b200", w.Header().Get("Location"))
	assert.Equal(t, []any{inventory.NewSKU{Name: "b200", GPUModel: "B200", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1024, Reason: "TCK-12"}, "ops"}, d.decided)

	for body, reason := range map[string]string{"": "", `{"reason":"end of life"}`: "end of life"} {
		w = d.request(t, http.MethodPost, "/skus/a100/deactivate", body)
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		assert.Equal(t, []any{"a100", reason, "ops"}, d.decided)
	}

	d.next = []string{"h100"}
	w = d.request(t, http.MethodGet, "/skus?active=false&limit=1&fields=name", "")
	assert.JSONEq(t, `{"skus":[{"name":"h100"}],"next_page_token":"WyJoMTAwIl0"}`, w.Body.String())
	assert.Equal(t, adminapi.SKUQuery{Page: adminapi.Page{Limit: 1}, Active: new(false)}, d.asked)
	d.request(t, http.MethodGet, "/skus?page_token=WyJoMTAwIl0", "")
	assert.Equal(t, adminapi.SKUQuery{Page: adminapi.Page{Limit: 100, After: []string{"h100"}}}, d.asked)
	assert.JSONEq(t, `{"name":"h100","max_gpus":0,"min_cpus":0,"min_memory_bytes":0,"active":true}`, d.request(t, http.MethodGet, "/skus/h100", "").Body.String())
}

func TestSKURefusals(t *testing.T) {
	d := newBackend()
	for body, reason := range map[string]string{
		`{"min_cpus":1}`:                                             "bad_name",
		`{"name":"-a","min_cpus":1}`:                                 "bad_name",
		`{"name":"a b","min_cpus":1}`:                                "bad_name",
		`{"name":"` + strings.Repeat("a", 65) + `","min_cpus":1}`:    "bad_name",
		`{"name":"a","min_cpus":1,"gpu_model":" H100","max_gpus":8}`: "bad_gpu_model",
		`{"name":"a","min_cpus":1,"gpu_model":"a\nb","max_gpus":8}`:  "bad_gpu_model",
		`{"name":"a","min_cpus":1,"gpu_model":"H100"}`:               "bad_max_gpus",
		`{"name":"a","min_cpus":1,"max_gpus":-1}`:                    "bad_max_gpus",
		`{"name":"a","min_cpus":1,"max_gpus":1025}`:                  "bad_max_gpus",
		`{"name":"a"}`:                                                  "bad_min_cpus",
		`{"name":"a","min_cpus":65537}`:                                 "bad_min_cpus",
		`{"name":"a","min_cpus":1,"min_memory_bytes":-1}`:               "bad_min_memory_bytes",
		`{"name":"a","min_cpus":1,"min_memory_bytes":1125899906842625}`: "bad_min_memory_bytes",
		`{"name":"a","min_cpus":1,"reason":"a\nb"}`:                     "bad_reason",
		`{"name":"a","min_cpus":1,"active":false}`:                      "malformed_body",
		`{"name":"a","min_cpus":1,"gpu_model":"` + trust.APITokenPrefix + `0123456789abcdef","max_gpus":8}`: "secret_in_request",
	} {
		w := d.request(t, http.MethodPost, "/skus", body)
		assert.Equal(t, http.StatusBadRequest, w.Code, body)
		assert.Equal(t, reason, refusal(t, w).Reason, body)
	}
	assert.Equal(t, "bad_reason", refusal(t, d.request(t, http.MethodPost, "/skus/a/deactivate", `{"reason":"a\nb"}`)).Reason)
	assert.Equal(t, "bad_active", refusal(t, d.request(t, http.MethodGet, "/skus?active=maybe", "")).Reason)
	for method, path := range map[string]string{http.MethodGet: "/skus/a%20b", http.MethodPost: "/skus/a%20b/deactivate"} {
		w := d.request(t, method, path, "")
		assert.Equal(t, http.StatusNotFound, w.Code, path)
		assert.Equal(t, "gpuaas sku list", refusal(t, w).Next, path)
	}
	assert.Empty(t, d.decided)

	d.decision = schema.NewError(schema.KindAlreadyExists, "another SKU").WithNext("gpuaas sku show a")
	w := d.request(t, http.MethodPost, "/skus", `{"name":"a","min_cpus":1}`)
	assert.Equal(t, http.StatusConflict, w.Code)
	assert.Equal(t, "gpuaas sku show a", refusal(t, w).Next)
}

// Viewers and operators read the catalog; an admin changes it.
func TestSKURoles(t *testing.T) {
	d := newBackend()
	d.tokens = tokensFile(t, tokenLine("vic", "viewer"), tokenLine("olga", "operator"))
	for _, token := range []string{"token-of-vic", "token-of-olga"} {
		for _, path := range []string{"/skus", "/skus/h100"} {
			assert.Equal(t, http.StatusOK, d.request(t, http.MethodGet, path, "", "Authorization", "Bearer "+token).Code, path)
		}
		for path, body := range map[string]string{"/skus": `{"name":"a","min_cpus":1}`, "/skus/h100/deactivate": ""} {
			w := d.request(t, http.MethodPost, path, body, "Authorization", "Bearer "+token)
			assert.Equal(t, http.StatusForbidden, w.Code, path)
			assert.Contains(t, refusal(t, w).Next, "role admin", path)
		}
	}
	assert.Empty(t, d.decided)
}
