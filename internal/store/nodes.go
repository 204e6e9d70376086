package store

import (
	"cmp"
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const defaultSSHPort = 22

// Register adds a node in state registered, as adminapi.Nodes specifies. Refusals
// are audited in the system stream.
func (s *Admin) Register(ctx context.Context, id string, r wire.RegisterNodeRequest, by audit.Subject) (wire.NodeView, error) {
	err := s.db.write(ctx, "registering host "+r.Host, func(ctx context.Context, tx *tx) error {
		e := subjectEvent(by, audit.SystemStream, audit.ActionName(lifecycle.ActionRegister), r.Host,
			map[string]string{"host": r.Host, "sku": r.SKU, "region": r.RegionCode, "onboarding_mode": r.OnboardingMode})
		if err := checkProvider(ctx, tx, r.OnboardingMode); err != nil {
			return refuse(err, e)
		}
		sku, err := checkSKU(ctx, tx, r.SKU, optional(r.GPUsTotal), false)
		if err != nil {
			return refuse(err, e)
		}
		r.GPUsTotal, r.WorkloadDriver = cmp.Or(r.GPUsTotal, sku.MaxGPUs), cmp.Or(r.WorkloadDriver, sku.WorkloadDriver)
		err = tx.InsertNode(ctx, nodeParams(id, r))
		if err == nil && len(r.Labels) > 0 {
			e.Detail["labels"] = describeLabels(r.Labels, nil)
			err = setLabels(ctx, tx, id, r.Labels, nil)
		}
		if postgres.Violates(err, hostLiveKey) {
			return refuse(s.db.Interpret(err, "registering host "+r.Host), e)
		}
		e.Stream, e.Target = id, id
		tx.note(e)
		return err
	})
	if err != nil {
		return wire.NodeView{}, err
	}
	return s.Node(ctx, id)
}

// checkSKU checks that a node can be registered under the SKU with that many GPUs, nil
// for that of the SKU, and returns the SKU. A node that has the SKU keeps it even when it is
// not active.
func checkSKU(ctx context.Context, tx *tx, name string, gpus *int, has bool) (inventory.SKU, error) {
	sku, err := tx.GetSKU(ctx, name)
	if err != nil {
		return inventory.SKU{}, orMissing(err, schema.NewError(schema.KindInvalidRequest, "SKU %q is not in the catalog", name).
			WithReason("sku_unknown").WithNext("gpuaas sku list"))
	}
	if gpus == nil {
		gpus = &sku.MaxGPUs
	}
	sku.Active = sku.Active || has
	return inventory.SKU(sku), inventory.SKU(sku).CheckRegistration(*gpus)
}

func nodeParams(id string, r wire.RegisterNodeRequest) sqlc.InsertNodeParams {
	return sqlc.InsertNodeParams{
		NodeID: id, Host: r.Host, SKU: r.SKU, GPUsTotal: r.GPUsTotal, RegionCode: r.RegionCode,
		OnboardingMode: cmp.Or(r.OnboardingMode, inventory.ProviderManual), LifecycleClass: cmp.Or(r.LifecycleClass, inventory.ClassPersistent),
		Port: cmp.Or(r.Port, defaultSSHPort), SSHUsername: r.SSHUsername, SSHPublicKey: r.SSHPublicKey, WorkloadDriver: r.WorkloadDriver, Probe: r.Probe,
	}
}
