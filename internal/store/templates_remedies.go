package store

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

const (
	// remedyStartFor is how long scans try to start the operation of a remedy: the scan that chose it and the
	// next two.
	remedyStartFor = 2*lifecycle.DriftInterval + lifecycle.SweepTimeout
	// remedyClaimFor is how long a remedy without an operation holds its place: until an operation that the
	// last of these scans started can no longer claim its node.
	remedyClaimFor = remedyStartFor + lifecycle.SweepTimeout + lifecycle.StartWithin
)

// DueRemedies implements activities.Drifts. Only one transaction at a time chooses new ones.
func (s *Templates) DueRemedies(ctx context.Context, most int) ([]lifecycle.OperationInput, error) {
	return write(ctx, s.db, "choosing the drifts to correct", func(ctx context.Context, tx *tx) ([]lifecycle.OperationInput, error) {
		if on, err := tx.restoring(ctx); err != nil || on {
			return nil, err
		}
		if err := tx.LockRemedies(ctx); err != nil {
			return nil, err
		}
		open, err := tx.OpenRemedies(ctx, remedyClaimFor.Seconds())
		if err != nil {
			return nil, err
		}
		if free := most - int(open); free > 0 {
			if err := beginRemedies(ctx, tx, free, most); err != nil {
				return nil, err
			}
		}
		pending, err := tx.PendingRemedies(ctx, remedyStartFor.Seconds())
		return convert(pending, remedyInput), err
	})
}

// beginRemedies stores with at most so many drifts the ID of the operation that corrects them. It leaves
// out nodes that a maintenance window of the policy of health recovery covers, and versions that so many
// nodes received and do not run.
func beginRemedies(ctx context.Context, tx *tx, free, most int) error {
	due, err := tx.DueRemedies(ctx)
	if err != nil || len(due) == 0 {
		return err
	}
	policy, err := policyInUse(ctx, tx)
	if err != nil {
		return err
	}
	uncured, err := tx.UncuredRemedies(ctx, remedyClaimFor.Seconds())
	if err != nil {
		return err
	}
	given := map[string]int{}
	for _, u := range uncured {
		given[u.Upgrade] = int(u.Nodes)
	}
	for _, d := range due {
		n := recovery.Node{NodeID: d.NodeID, Host: d.Host, SKU: d.SKU, Region: d.RegionCode, Rack: d.Rack, Class: string(d.LifecycleClass), GPUs: d.GPUsTotal}
		if _, planned := policy.Window(n, d.Now); planned || free == 0 || given[d.Upgrade] >= most {
			continue
		}
		if err := tx.BeginRemedy(ctx, schema.NewID(), d.NodeID); err != nil {
			return err
		}
		given[d.Upgrade]++
		free--
	}
	return nil
}

// policyInUse returns the newest policy of health recovery.
func policyInUse(ctx context.Context, tx *tx) (recovery.Policy, error) {
	stored, err := newestPolicy(ctx, tx.Queries)
	if err != nil {
		return recovery.Policy{}, err
	}
	return stored.Decode()
}

// viaDrift is the interface that the audit names for operations that a template's policy started.
const viaDrift = "drift"

func remedyInput(r sqlc.PendingRemediesRow) lifecycle.OperationInput {
	return lifecycle.OperationInput{OperationID: r.Remedy, NodeID: r.NodeID, Host: r.Host, Provider: r.Provider, Region: r.RegionCode,
		Action: lifecycle.ActionUpgradeAgent, Actor: systemActor, Via: viaDrift, CorrelationID: r.Remedy,
		Reason:             fmt.Sprintf("differs from template %s version %d", r.Template, r.Version),
		StartWithinSeconds: int64(lifecycle.StartWithin / time.Second),
		Options:            lifecycle.Options{AgentVersion: r.Upgrade, Release: r.AgentRelease}}
}

// RefuseRemedy implements activities.Drifts.
func (s *Templates) RefuseRemedy(ctx context.Context, nodeID, operationID, why string) error {
	return s.db.Call(ctx, "recording that the upgrade of node "+nodeID+" was refused", func(ctx context.Context) error {
		return s.db.q.RefuseRemedy(ctx, printable(why), nodeID, operationID)
	})
}
