package cli

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// providers are one that creates no machines, one with a catalog and one that is disabled.
func providers() []machine.Provider {
	return []machine.Provider{
		{Info: machine.Info{Name: "libvirt", Creates: true, Limits: machine.Limits{Create: 5 * time.Minute, Boot: 90 * time.Second},
			Catalog: machine.Catalog{Regions: []string{"fra1", "fra2", "ams1", "lon1"}, Images: []string{"noble"}, Spot: true, Defaults: machine.Options{Region: "fra1", Image: "noble"}, Types: []machine.Type{
				{ID: "cpu-2", CPUs: 2, MemoryMiB: 512}, {ID: "gpu-8", CPUs: 96, MemoryMiB: 1 << 20, GPUs: 8, GPUModel: "H100", Regions: []string{"fra1", "ams1"}}}}},
			UpdatedAt: start().Add(-time.Hour)},
		{Info: machine.Info{Name: "maas", Creates: true, Disabled: "GPUAAS_MAAS_URL is not set"}, UpdatedAt: start().Add(-time.Minute)},
		{Info: machine.Info{Name: "manual"}, UpdatedAt: start().Add(-26 * time.Hour)},
	}
}

func (a *fakeAPI) serveMachines(mux *http.ServeMux) {
	a.providers, a.instances = providers(), instances()
	mux.HandleFunc("GET /api/v1/admin/providers", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, machine.Providers{Providers: a.providers})
	})
	mux.HandleFunc("GET /api/v1/admin/instances", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		list := instance.List{Instances: slices.DeleteFunc(slices.Clone(a.instances), func(v instance.View) bool {
			return q.Has("node") && v.Host != q.Get("node") || q.Has("state") && !slices.Contains(q["state"], string(v.State)) ||
				q.Has("provider") && !slices.Contains(q["provider"], v.Provider)
		})}
		a.answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /api/v1/admin/instances/{instance_id}", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("instance_id")
		known := slices.Clone(a.instances)
		for _, n := range a.nodes {
			if n.Instance != nil && n.Instance.Provider == "manual" {
				known = append(known, instance.View{Instance: *n.Instance, NodeID: n.ID, Host: n.Host, StartedAt: start().Add(-26 * time.Hour)})
			}
		}
		if i := slices.IndexFunc(known, func(v instance.View) bool { return v.InstanceID == id }); i >= 0 {
			a.answer(w, http.StatusOK, known[i])
			return
		}
		a.fail(w, schema.NewError(schema.KindNotFound, "no instance %q", id).WithNext("gpuaas instance list"))
	})
}

func TestProvider(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"list":          {"list"},
		"list-json":     {"list", "-o", "json"},
		"show":          {"show", "libvirt"},
		"show-disabled": {"show", "maas"},
		"show-manual":   {"show", "manual"},
		"show-unknown":  {"show", "aws"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setup(t).golden("provider-"+name, append([]string{"provider"}, args...)...)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.providers = []machine.Provider{}
		h.golden("provider-list-none", "provider", "list")
	})
}

// TestProvisionIsPlanned: the dry run of a provisioning refuses what the provider of the node does
// not offer, and starts nothing.
func TestProvisionIsPlanned(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode string
		args []string
	}{
		"machine":  {"libvirt", []string{"--provider-region", "fra1", "--type", "gpu-8", "--image", "noble", "--spot"}},
		"region":   {"libvirt", []string{"--provider-region", "tok1"}},
		"type":     {"libvirt", []string{"--provider-region", "lon1", "--type", "gpu-8"}},
		"disabled": {"maas", nil},
		"manual":   {"manual", []string{"--type", "gpu-8"}},
		"unknown":  {"aws", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			n := node()
			n.State, n.OnboardingMode = lifecycle.NodeRegistered, c.mode
			if c.mode == "manual" {
				n.State = lifecycle.NodeActive
			}
			h.api.nodes = []wire.NodeView{n}
			h.golden("provision-plan-"+name, append([]string{"node", "provision", "gpu-17", "--dry-run"}, c.args...)...)
			require.Empty(t, h.temporal.submitted)
		})
	}
}

// TestTerminationPlanWithoutInstance: the plan of a termination does not have the ledger, which may
// still have the machine of an instance that ended. So it refuses nothing that the claim may admit.
func TestTerminationPlanWithoutInstance(t *testing.T) {
	t.Parallel()
	for state, code := range map[lifecycle.NodeState]int{lifecycle.NodeRegistered: schema.ExitDone, lifecycle.NodeActive: schema.ExitRefused} {
		h := setup(t)
		n := node()
		n.State, n.OnboardingMode, n.Workloads = state, "libvirt", nil
		n.Instance = &lifecycle.Instance{State: lifecycle.InstanceTerminated}
		h.api.nodes = []wire.NodeView{n}
		require.Equal(t, code, h.run("node", "terminate", "gpu-17", "--dry-run"), state)
	}
}
