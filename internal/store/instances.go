package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// liveInstance returns the node's instance that is not terminated, the zero Instance if it
// has none.
func (tx *tx) liveInstance(ctx context.Context, nodeID string) (lifecycle.Instance, error) {
	i, err := tx.LiveInstance(ctx, nodeID)
	if postgres.NotFound(err) {
		return lifecycle.Instance{}, nil
	}
	return lifecycle.Instance{InstanceID: i.InstanceID, Provider: i.Provider, ExternalID: i.ExternalID, State: i.State, StateSince: i.StateSince.UTC(),
		Options: machine.Options{Region: i.Region, Type: i.MachineType, Image: i.Image, Spot: i.Spot, SSHKeys: i.SSHKeys}}, err
}

// beginInstance returns the instance of a provisioning, in state pending: the live one, whose
// machine may exist, or a new one. Its ID exists before any call of the provider. Without a type, the
// machine has the provider's first one that satisfies the node's SKU, and there must be one. The instance has what the
// machine will have, also where nothing was asked for.
func beginInstance(ctx context.Context, tx *tx, n sqlc.LockNodeRow, o machine.Options, provider machine.Info) (lifecycle.Instance, error) {
	i, err := tx.liveInstance(ctx, n.NodeID)
	switch {
	case err != nil:
		return i, err
	case i.State.Live() && !i.Options.Allows(o):
		return i, schema.NewError(schema.KindInvalidRequest, "node %s has instance %s of another type, region or image", n.Host, i.InstanceID).
			WithReason("instance_exists").WithNext("repeat the request without these options, or cancel the provisioning to return the machine")
	case i.State.Live():
		_, err = moveInstance(ctx, tx, n.NodeID, i.State, lifecycle.InstancePending)
		i.State = lifecycle.InstancePending
		return i, err
	}
	sku, err := tx.GetSKU(ctx, n.SKU)
	if err != nil {
		return i, err
	}
	region := provider.Chosen(o, "").Region
	fits := provider.TypeFor(region, sku.MinCPUs, n.GPUsTotal, sku.MinMemoryBytes)
	if o.Type == "" && fits == "" && len(provider.Types) > 0 {
		return i, schema.NewError(schema.KindInvalidRequest, "provider %q has no type for SKU %s: it needs %d CPUs, %d GPUs and more than %d MiB of memory",
			provider.Name, n.SKU, sku.MinCPUs, n.GPUsTotal, sku.MinMemoryBytes>>20).WithReason("no_type_for_sku").
			WithNext("gpuaas provider show " + provider.Name + ", then choose a --type, or register the node with another SKU")
	}
	o = provider.Chosen(o, fits)
	i = lifecycle.Instance{InstanceID: schema.NewID(), Provider: n.OnboardingMode, State: lifecycle.InstancePending, Options: o}
	return i, tx.InsertInstance(ctx, sqlc.InsertInstanceParams{InstanceID: i.InstanceID, NodeID: n.NodeID, Provider: i.Provider,
		Region: o.Region, MachineType: o.Type, Image: o.Image, Spot: o.Spot, SSHKeys: append([]string{}, o.SSHKeys...)})
}

// endInstance returns the instance of a termination as it is before the node enters a state, and
// then gives it the state that follows. It returns the zero Instance if the termination only
// releases what an earlier one left in the ledger.
func endInstance(ctx context.Context, tx *tx, nodeID string, n lifecycle.NodeState, detail map[string]string) (lifecycle.Instance, error) {
	i, err := tx.liveInstance(ctx, nodeID)
	if err != nil || !i.State.Live() {
		return i, err
	}
	detail["instance_id"] = i.InstanceID
	return i, followNode(ctx, tx, nodeID, n, detail)
}

// endMachine ends what a node has of a machine that was created for it and is gone: its identity
// and tokens, an open reissue, and what its agent reported. The next machine enrolls with the next
// incarnation.
func endMachine(ctx context.Context, tx *tx, n sqlc.LockNodeRow) error {
	if err := tx.voidIdentity(ctx, n.NodeID, []string{slotPending, slotCurrent}, allPurposes()); err != nil {
		return err
	}
	if err := endReissue(ctx, tx, n, "the machine of the node is gone; on its next machine, run: "); err != nil {
		return err
	}
	if _, err := tx.NextIncarnation(ctx, n.NodeID); err != nil {
		return err
	}
	tx.wakeNode(n.NodeID)
	if err := tx.ForgetReports(ctx, n.NodeID); err != nil {
		return err
	}
	return tx.ForgetMachine(ctx, n.NodeID)
}

// setInstance sets the state of the node's instance and returns the one before. "" changes
// nothing, and neither does the end of an instance that does not exist.
func setInstance(ctx context.Context, tx *tx, nodeID string, want lifecycle.InstanceState) (was lifecycle.InstanceState, err error) {
	if want == lifecycle.InstanceNone {
		return want, nil
	}
	i, err := tx.liveInstance(ctx, nodeID)
	if err != nil || !i.State.Live() && want == lifecycle.InstanceTerminated {
		return want, err
	}
	return moveInstance(ctx, tx, nodeID, i.State, want)
}

// followNode gives the node's instance the state that follows from the node's new one. It adds
// a change to the detail of the operation's audit event.
func followNode(ctx context.Context, tx *tx, nodeID string, n lifecycle.NodeState, detail map[string]string) error {
	i, err := tx.liveInstance(ctx, nodeID)
	if err != nil || !i.State.Live() {
		return err
	}
	to := i.State.Follow(n)
	if to != i.State {
		detail["instance"] = string(to)
	}
	_, err = moveInstance(ctx, tx, nodeID, i.State, to)
	return err
}

// moveInstance changes the state of a live instance and returns the one before.
func moveInstance(ctx context.Context, tx *tx, nodeID string, from, to lifecycle.InstanceState) (lifecycle.InstanceState, error) {
	if err := from.CheckMove(to); err != nil || from == to {
		return from, err
	}
	return from, tx.SetInstanceState(ctx, to, nodeID)
}
