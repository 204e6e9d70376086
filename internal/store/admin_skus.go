package store

import (
	"context"
	"strconv"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// ListSKUs implements adminapi.SKUs.
func (s *Admin) ListSKUs(ctx context.Context, q adminapi.SKUQuery) (skus []inventory.SKU, next []string, err error) {
	f := &filter{}
	if q.Active != nil {
		f.where("active = " + f.arg(*q.Active))
	}
	if len(q.After) > 0 {
		f.where("name > " + f.arg(q.After[0]))
	}
	return page(ctx, s.db, listQuery{"listing SKUs", "SELECT * FROM skus", "name", q.Limit}, f,
		func(s inventory.SKU) []string { return []string{s.Name} })
}

// SKU implements adminapi.SKUs.
func (s *Admin) SKU(ctx context.Context, name string) (inventory.SKU, error) {
	return query(ctx, s.db, "reading SKU "+name, func(ctx context.Context) (inventory.SKU, error) {
		row, err := s.db.q.GetSKU(ctx, name)
		return inventory.SKU(row), orMissing(err, errNoSKU(name))
	})
}

// AddSKU implements adminapi.SKUs. The audit row of the change is in the system
// stream, and so is that of a conflict.
func (s *Admin) AddSKU(ctx context.Context, n inventory.NewSKU, by audit.Subject) (inventory.SKU, error) {
	sku := inventory.SKU{Name: n.Name, GPUModel: n.GPUModel, MaxGPUs: n.MaxGPUs, MinCPUs: n.MinCPUs, MinMemoryBytes: n.MinMemoryBytes, WorkloadDriver: n.WorkloadDriver, Active: true}
	return write(ctx, s.db, "adding SKU "+n.Name, func(ctx context.Context, tx *tx) (inventory.SKU, error) {
		e := subjectEvent(by, audit.SystemStream, audit.SKUAdded, n.Name, map[string]string{"gpu_model": n.GPUModel,
			"max_gpus": strconv.Itoa(n.MaxGPUs), "min_cpus": strconv.Itoa(n.MinCPUs), "min_memory_bytes": strconv.FormatInt(n.MinMemoryBytes, 10),
			"workload_driver": n.WorkloadDriver})
		e.Reason = n.Reason
		added, err := tx.AddSKU(ctx, sqlc.AddSKUParams{Name: n.Name, GPUModel: n.GPUModel, MaxGPUs: n.MaxGPUs, MinCPUs: n.MinCPUs,
			MinMemoryBytes: n.MinMemoryBytes, WorkloadDriver: n.WorkloadDriver})
		if err != nil {
			return sku, err
		}
		if added == 1 {
			tx.note(e)
			return sku, nil
		}
		stored, err := tx.GetSKU(ctx, n.Name)
		if err == nil && inventory.SKU(stored) != sku {
			err = refuse(schema.NewError(schema.KindAlreadyExists, "the catalog has another SKU %q", n.Name).
				WithReason("sku_exists").WithNext("gpuaas sku show "+n.Name), e)
		}
		return sku, err
	})
}

// DeactivateSKU implements adminapi.SKUs. The audit row is in the system stream.
func (s *Admin) DeactivateSKU(ctx context.Context, name, reason string, by audit.Subject) (inventory.SKU, error) {
	return write(ctx, s.db, "deactivating SKU "+name, func(ctx context.Context, tx *tx) (inventory.SKU, error) {
		changed, err := tx.DeactivateSKU(ctx, name)
		if err != nil {
			return inventory.SKU{}, err
		}
		if changed == 1 {
			e := subjectEvent(by, audit.SystemStream, audit.SKUDeactivated, name, nil)
			e.Reason = reason
			tx.note(e)
		}
		row, err := tx.GetSKU(ctx, name)
		return inventory.SKU(row), orMissing(err, errNoSKU(name))
	})
}

func errNoSKU(name string) error {
	return schema.NewError(schema.KindNotFound, "no SKU %q", name).WithNext("gpuaas sku list")
}
