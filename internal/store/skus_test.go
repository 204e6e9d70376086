package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func TestSKUCatalog(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	b200 := inventory.NewSKU{Name: "b200", GPUModel: "B200", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1 << 40, Reason: "TCK-12"}
	active := inventory.SKU{Name: "b200", GPUModel: "B200", MaxGPUs: 8, MinCPUs: 64, MinMemoryBytes: 1 << 40, Active: true}
	inactive := active
	inactive.Active = false
	add := func() {
		got, err := e.AddSKU(ctx, b200, operator)
		require.NoError(t, err)
		require.Equal(t, active, got)
	}
	deactivate := func() {
		got, err := e.DeactivateSKU(ctx, "b200", "end of life", operator)
		require.NoError(t, err)
		require.Equal(t, inactive, got)
	}
	rows := e.changes(audit.SystemStream, func() { add(); add() })
	require.Equal(t, []string{"skus.add succeeded TCK-12"}, rows, "the second one changes nothing")
	got, err := e.SKU(ctx, "b200")
	require.NoError(t, err)
	require.Equal(t, active, got)
	first := e.chain(audit.SystemStream)[0]
	require.Equal(t, "b200", first.Target)
	require.Equal(t, map[string]string{"gpu_model": "B200", "max_gpus": "8", "min_cpus": "64", "min_memory_bytes": "1099511627776"}, first.Detail)

	n := e.register(func(r *wire.RegisterNodeRequest) { r.SKU = "b200" })
	require.Equal(t, []string{"skus.deactivate succeeded end of life"}, e.changes(audit.SystemStream, func() { deactivate(); deactivate() }))
	_, err = e.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: "late", SKU: "b200", RegionCode: "r"}, operator)
	requireKind(t, err, schema.KindInvalidRequest, "sku_inactive")
	require.Equal(t, "gpuaas sku list --active", schema.AsError(err).Next)
	changed, err := e.SetNode(ctx, n.ID, wire.NodeChange{GPUsTotal: new(4)}, operator)
	require.NoError(t, err, "a node keeps the SKU and can still be corrected")
	require.Equal(t, 4, changed.GPUsTotal)

	require.Equal(t, []string{"skus.add succeeded TCK-12"}, e.changes(audit.SystemStream, add), "the same content activates it again")
	other := b200
	other.MaxGPUs = 4
	require.Equal(t, []string{"skus.add refused sku_exists"}, e.changes(audit.SystemStream, func() {
		_, err := e.AddSKU(ctx, other, operator)
		requireKind(t, err, schema.KindAlreadyExists, "sku_exists")
		require.Equal(t, "gpuaas sku show b200", schema.AsError(err).Next)
	}))
	deactivate()
	_, err = e.AddSKU(ctx, other, operator)
	requireKind(t, err, schema.KindAlreadyExists, "sku_exists")
	got, err = e.SKU(ctx, "b200")
	require.NoError(t, err)
	require.Equal(t, inactive, got, "a conflict changes nothing")

	for _, err := range []error{second(e.SKU(ctx, "none")), second(e.DeactivateSKU(ctx, "none", "", operator))} {
		requireKind(t, err, schema.KindNotFound, "")
		require.Equal(t, "gpuaas sku list", schema.AsError(err).Next)
	}
	_, err = e.Register(ctx, schema.NewID(), wire.RegisterNodeRequest{Host: "late", SKU: "none", RegionCode: "r"}, operator)
	requireKind(t, err, schema.KindInvalidRequest, "sku_unknown")
	require.Equal(t, "gpuaas sku list", schema.AsError(err).Next)
}

func second[T any](_ T, err error) error { return err }

func TestListSKUs(t *testing.T) {
	e := setup(t)
	e.exec("UPDATE skus SET active = false WHERE name = 'a100'")
	names := func(q adminapi.SKUQuery) (out []string) {
		for {
			skus, next, err := e.ListSKUs(t.Context(), q)
			require.NoError(t, err)
			for _, s := range skus {
				require.Equal(t, s.Name != "a100", s.Active)
				out = append(out, s.Name)
			}
			if q.After = next; next == nil {
				return out
			}
		}
	}
	require.Equal(t, []string{"a100", "cpu-dev", "h100"}, names(adminapi.SKUQuery{Page: adminapi.Page{Limit: 1}}))
	require.Equal(t, []string{"cpu-dev", "h100"}, names(adminapi.SKUQuery{Page: all, Active: new(true)}))
	require.Equal(t, []string{"a100"}, names(adminapi.SKUQuery{Page: all, Active: new(false)}))
}

// Of many requests to add a SKU with different contents one wins.
func TestOneOfManyAddedSKUsWins(t *testing.T) {
	e := setup(t)
	won := 0
	for _, err := range race(10, func(i int) error {
		return second(e.AddSKU(t.Context(), inventory.NewSKU{Name: "x", MinCPUs: i + 1}, operator))
	}) {
		if err == nil {
			won++
			continue
		}
		requireKind(t, err, schema.KindAlreadyExists, "sku_exists")
	}
	require.Equal(t, 1, won)
	require.Len(t, e.chain(audit.SystemStream), 10)
}
