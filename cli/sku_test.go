package cli

import (
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

func skus() []inventory.SKU {
	return []inventory.SKU{
		{Name: "a100", GPUModel: "A100", MaxGPUs: 8, MinCPUs: 16, MinMemoryBytes: 128 << 30},
		{Name: "cpu-dev", MinCPUs: 1, MinMemoryBytes: 512 << 20, Active: true},
	}
}

func (a *fakeAPI) serveSKUs(mux *http.ServeMux) {
	a.skus = skus()
	mux.HandleFunc("GET /api/v1/admin/skus", func(w http.ResponseWriter, r *http.Request) {
		list := inventory.SKUList{SKUs: slices.Clone(a.skus)}
		if q := r.URL.Query(); q.Has("active") {
			list.SKUs = slices.DeleteFunc(list.SKUs, func(s inventory.SKU) bool { return s.Active != (q.Get("active") == "true") })
		}
		a.answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /api/v1/admin/skus/{sku}", func(w http.ResponseWriter, r *http.Request) {
		if s := a.findSKU(w, r); s != nil {
			a.answer(w, http.StatusOK, *s)
		}
	})
	mux.HandleFunc("POST /api/v1/admin/skus", func(w http.ResponseWriter, r *http.Request) {
		var n inventory.NewSKU
		if !a.read(w, r, &n) {
			return
		}
		a.added = append(a.added, n)
		if slices.ContainsFunc(a.skus, func(s inventory.SKU) bool { return s.Name == n.Name }) {
			a.fail(w, schema.NewError(schema.KindAlreadyExists, "the catalog has another SKU %q", n.Name).
				WithReason("sku_exists").WithNext("gpuaas sku show "+n.Name))
			return
		}
		a.answer(w, http.StatusCreated, inventory.SKU{Name: n.Name, GPUModel: n.GPUModel, MaxGPUs: n.MaxGPUs, MinCPUs: n.MinCPUs,
			MinMemoryBytes: n.MinMemoryBytes, Active: true})
	})
	mux.HandleFunc("POST /api/v1/admin/skus/{sku}/deactivate", func(w http.ResponseWriter, r *http.Request) {
		var d inventory.SKUDeactivation
		s := a.findSKU(w, r)
		if s == nil || !a.read(w, r, &d) {
			return
		}
		a.decided = append(a.decided, "deactivate "+s.Name+" "+d.Reason)
		s.Active = false
		a.answer(w, http.StatusOK, *s)
	})
}

func (a *fakeAPI) findSKU(w http.ResponseWriter, r *http.Request) *inventory.SKU {
	name := r.PathValue("sku")
	i := slices.IndexFunc(a.skus, func(s inventory.SKU) bool { return s.Name == name })
	if i < 0 {
		a.fail(w, schema.NewError(schema.KindNotFound, "no SKU %q", name).WithNext("gpuaas sku list"))
		return nil
	}
	return &a.skus[i]
}

func TestSKU(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"list":          {"list"},
		"list-active":   {"list", "--active"},
		"list-inactive": {"list", "--active=false", "-o", "json"},
		"show":          {"show", "cpu-dev"},
		"show-unknown":  {"show", "b300"},
		"add-exists":    {"add", "a100"},
		"add-size":      {"add", "b200", "--min-memory", "1TB"},
		"deactivate":    {"deactivate", "cpu-dev", "--reason", "end of life"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			setup(t).golden("sku-"+name, append([]string{"sku"}, args...)...)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.skus = nil
		h.golden("sku-list-none", "sku", "list")
	})
	t.Run("add", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.golden("sku-add", "sku", "add", "b200", "--gpu-model", "B200", "--max-gpus", "8", "--min-cpus", "64", "--min-memory", "1TiB", "--reason", "TCK-12")
		require.Equal(t, []inventory.NewSKU{{Name: "b200", GPUModel: "B200", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1 << 40, Reason: "TCK-12"}}, h.api.added)
	})
	t.Run("the reason of a deactivation is sent", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		require.Zero(t, h.run("sku", "deactivate", "cpu-dev", "--reason", "end of life"))
		require.Equal(t, []string{"deactivate cpu-dev end of life"}, h.api.decided)
	})
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"512MiB": 512 << 20, "256GiB": 256 << 30, "0TiB": 0, "4194303TiB": 4194303 << 40} {
		got, err := parseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "512", "512MB", "-1GiB", "4194304TiB", "1.5TiB", "GiB"} {
		_, err := parseSize(text)
		require.Error(t, err, text)
	}
}
