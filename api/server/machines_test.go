package server

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// A node is registered with a provider that a worker has stored, its machine is chosen from what the
// provider offers, and its instances are listed with the privileges of the admin API.
func TestProvidersAndInstancesByHTTP(t *testing.T) {
	r := newCluster(t).replica()
	info := machines.Info{Name: "libvirt", Creates: true, Catalog: machines.Catalog{Regions: []string{"here"}, Types: []machines.Type{{ID: "small", CPUs: 2}}}}
	kept, err := r.store.Inventory.PutProviders(t.Context(), []machines.Info{info})
	require.NoError(t, err)
	require.Empty(t, kept)
	var providers machines.Providers
	r.ask(http.MethodGet, "/providers", nil).into(t, &providers)
	require.Len(t, providers.Providers, 2)
	assert.Equal(t, info, providers.Providers[0].Info)
	assert.Equal(t, inventory.ProviderManual, providers.Providers[1].Name)

	var n wire.NodeView
	r.ask(http.MethodPost, "/nodes", `{"host":"vm-1","sku":"cpu-dev","region_code":"r","onboarding_mode":"libvirt","lifecycle_class":"ephemeral"}`).into(t, &n)
	assert.Equal(t, "libvirt", n.OnboardingMode)
	for body, reason := range map[string]string{
		`{"options":{"machine":{"region":"there"}}}`: machines.ReasonNotOffered,
		`{"options":{"machine":{"type":"large"}}}`:   machines.ReasonNotOffered,
		`{"options":{"machine":{"spot":true}}}`:      machines.ReasonNotOffered,
	} {
		a := r.ask(http.MethodPost, "/nodes/vm-1/provision", body)
		assert.Equal(t, http.StatusBadRequest, a.status, body)
		assert.Equal(t, reason, a.refusal(t).Reason, body)
		assert.Equal(t, "gpuaas provider show libvirt", a.refusal(t).Next, body)
	}
	assert.JSONEq(t, `{"instances":[]}`, string(r.ask(http.MethodGet, "/instances", nil).body), "a refusal begins no instance")

	a := r.ask(http.MethodPost, "/nodes/vm-1/provision", `{"options":{"machine":{"region":"here","type":"small"}}}`)
	require.Equal(t, http.StatusAccepted, a.status, string(a.body))
	var list instance.List
	r.ask(http.MethodGet, "/instances?node=vm-1&state=pending&provider=libvirt", nil).into(t, &list)
	require.Len(t, list.Instances, 1)
	live := list.Instances[0]
	assert.Equal(t, lifecycle.ActionProvision, live.Operation.Action)
	assert.Equal(t, machines.Options{Region: "here", Type: "small"}, live.Options)

	r.finish(n.ID, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated})
	var ended instance.View
	r.ask(http.MethodGet, "/instances/"+live.InstanceID, nil).into(t, &ended)
	assert.Equal(t, lifecycle.InstanceTerminated, ended.State)
	assert.NotNil(t, ended.EndedAt)
	assert.Nil(t, ended.Operation)
	assert.Equal(t, http.StatusNotFound, r.ask(http.MethodGet, "/instances/"+schema.NewID(), nil).status)

	a = r.ask(http.MethodPatch, "/nodes/vm-1", `{"lifecycle_class":"persistent"}`)
	assert.Equal(t, http.StatusBadRequest, a.status, "the class is fixed at the registration")
	assert.Equal(t, inventory.ClassEphemeral, r.show(n.ID).LifecycleClass)
}
