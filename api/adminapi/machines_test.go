package adminapi_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
)

func (d *backend) Providers(context.Context) ([]machines.Provider, error) {
	return d.providers, nil
}

func (d *backend) ListInstances(_ context.Context, q adminapi.InstanceQuery) ([]instance.View, []string, error) {
	d.asked = q
	return []instance.View{{Instance: lifecycle.Instance{InstanceID: d.node.ID, State: lifecycle.InstanceTerminated, Options: machines.Options{Region: "r1"}}, Host: "gpu-1"}}, d.next, nil
}

func (d *backend) Instance(_ context.Context, id string) (instance.View, error) {
	if d.instance.InstanceID == id {
		return d.instance, nil
	}
	if id != d.node.ID {
		return instance.View{}, schema.NewError(schema.KindNotFound, "no instance").WithNext("gpuaas instance list")
	}
	return instance.View{Instance: lifecycle.Instance{InstanceID: id}, Host: "gpu-1"}, nil
}

func TestProviders(t *testing.T) {
	d := newBackend()
	assert.JSONEq(t, `{"providers":[]}`, d.request(t, http.MethodGet, "/providers", "").Body.String())
	d.providers = []machines.Provider{{Info: machines.Info{Name: "libvirt", Creates: true, Disabled: "no socket", Limits: machines.Limits{Boot: time.Minute},
		Catalog: machines.Catalog{Regions: []string{"here"}, Types: []machines.Type{{ID: "small", CPUs: 2, MemoryMiB: 512}}}}, UpdatedAt: time.Unix(0, 0).UTC()}}
	w := d.request(t, http.MethodGet, "/providers", "")
	require.Equal(t, http.StatusOK, w.Code)
	assert.JSONEq(t, `{"providers":[{"name":"libvirt","creates":true,"disabled":"no socket","regions":["here"],
		"types":[{"id":"small","cpus":2,"memory_mib":512}],"limits":{"boot_seconds":60},"updated_at":"1970-01-01T00:00:00Z"}]}`, w.Body.String())
	assert.Equal(t, "unknown_parameter", refusal(t, d.request(t, http.MethodGet, "/providers?name=libvirt", "")).Reason)
}

func TestInstances(t *testing.T) {
	d := newBackend()
	d.next = []string{"2026-03-01T12:00:00Z", d.node.ID}
	w := d.request(t, http.MethodGet, "/instances?node=gpu-1&state=pending,terminated&provider=libvirt&limit=1&fields=host,region,state", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Contains(t, w.Body.String(), `"instances":[{"host":"gpu-1","region":"r1","state":"terminated"}]`)
	assert.Contains(t, w.Body.String(), `"next_page_token"`)
	assert.Equal(t, adminapi.InstanceQuery{Page: adminapi.Page{Limit: 1}, NodeID: d.node.ID, Providers: []string{"libvirt"},
		States: []lifecycle.InstanceState{lifecycle.InstancePending, lifecycle.InstanceTerminated}}, d.asked)

	w = d.request(t, http.MethodGet, "/instances/"+d.node.ID, "")
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	assert.Contains(t, w.Body.String(), `"host":"gpu-1"`)
	for path, reason := range map[string]string{"/instances?state=booting": "bad_state", "/instances?page_token=x": "bad_page_token",
		"/instances?fields=secret": "bad_fields", "/instances?open=true": "unknown_parameter", "/instances/" + d.node.ID + "?fields=host": "unknown_parameter"} {
		assert.Equal(t, reason, refusal(t, d.request(t, http.MethodGet, path, "")).Reason, path)
	}
	for _, path := range []string{"/instances/7", "/instances/" + schema.NewID()} {
		w := d.request(t, http.MethodGet, path, "")
		assert.Equal(t, http.StatusNotFound, w.Code, path)
		assert.Equal(t, "gpuaas instance list", refusal(t, w).Next, path)
	}
	assert.Equal(t, http.StatusNotFound, d.request(t, http.MethodGet, "/instances?node="+schema.NewID(), "").Code)
}

// The class and the provider of a node are fixed when it is registered: a change of them is not a
// field of the request.
func TestClassAndProviderCannotBeChanged(t *testing.T) {
	for _, body := range []string{`{"lifecycle_class":"spot"}`, `{"onboarding_mode":"libvirt"}`} {
		d := newBackend()
		w := d.request(t, http.MethodPatch, "/nodes/"+d.node.ID, body)
		assert.Equal(t, http.StatusBadRequest, w.Code, body)
		assert.Equal(t, "malformed_body", refusal(t, w).Reason, body)
		assert.Empty(t, d.change, body)
	}
}

// The machine of a provisioning is part of its request.
func TestProvisionChoosesTheMachine(t *testing.T) {
	d := newBackend()
	w := d.post(t, "provision", `{"options":{"machine":{"region":"here","type":"small","ssh_keys":["ssh-ed25519 AAAA me"]}}}`)
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	assert.Equal(t, machines.Options{Region: "here", Type: "small", SSHKeys: []string{"ssh-ed25519 AAAA me"}}, d.submitted.Options.Machine)
	for options, reason := range map[string]string{`{"ssh_keys":["-----BEGIN OPENSSH PRIVATE KEY-----"]}`: "secret_in_request",
		`{"region":"a b"}`: "bad_options", `{"ssh_keys":["a\nb"]}`: "bad_options"} {
		d := newBackend()
		w := d.post(t, "provision", `{"options":{"machine":`+options+`}}`)
		assert.Equal(t, http.StatusBadRequest, w.Code, options)
		assert.Equal(t, reason, refusal(t, w).Reason, options)
		assert.Empty(t, d.steps, options)
	}
	assert.Equal(t, "bad_options", refusal(t, newBackend().post(t, "drain", `{"options":{"machine":{"spot":true}}}`)).Reason)
}
