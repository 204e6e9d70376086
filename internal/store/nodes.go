package store

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	defaultSSHPort = 22
	manualMode     = "manual"
)

// Register adds a node in state registered, as adminapi.Store says. Refusals
// are on record in the system stream.
func (s *Store) Register(ctx context.Context, r wire.RegisterNodeRequest, by audit.Subject) (wire.NodeView, error) {
	id := schema.NewID()
	err := s.write(ctx, "registering host "+r.Host, func(ctx context.Context, u *unit) error {
		e := audit.Event{Stream: audit.SystemStream, Actor: by.Actor, Via: by.Via, Action: audit.ActionName(lifecycle.ActionRegister),
			Target: r.Host, CorrelationID: by.CorrelationID,
			Detail: map[string]string{"host": r.Host, "sku": r.SKU, "region": r.RegionCode}}
		if err := u.checkSKU(ctx, &r); err != nil {
			return refuse(err, e)
		}
		err := u.InsertNode(ctx, nodeParams(id, r))
		if err == nil && len(r.Labels) > 0 {
			e.Detail["labels"] = describeLabels(r.Labels, nil)
			err = setLabels(ctx, u, id, r.Labels, nil)
		}
		if violates(err, "nodes_host_live_key") {
			return refuse(interpretError(err, s.address, "registering host "+r.Host), e)
		}
		e.Stream, e.Target, e.Result = id, id, audit.Succeeded
		u.note(e)
		return err
	})
	if err != nil {
		return wire.NodeView{}, err
	}
	return s.Admin().Node(ctx, id)
}

// checkSKU checks the registration against the catalog. Without a number of GPUs
// the node has its SKU's.
func (u *unit) checkSKU(ctx context.Context, r *wire.RegisterNodeRequest) error {
	sku, err := u.GetSKU(ctx, r.SKU)
	if notFound(err) {
		return schema.NewError(schema.KindInvalidRequest, "SKU %q is not in the catalog", r.SKU).WithReason("sku_unknown")
	}
	if err != nil {
		return err
	}
	if r.GPUsTotal == 0 {
		r.GPUsTotal = sku.MaxGPUs
	}
	return inventory.SKU(sku).CheckRegistration(r.GPUsTotal)
}

func nodeParams(id string, r wire.RegisterNodeRequest) sqlc.InsertNodeParams {
	p := sqlc.InsertNodeParams{
		NodeID: id, Host: r.Host, SKU: r.SKU, GPUsTotal: r.GPUsTotal, RegionCode: r.RegionCode,
		OnboardingMode: r.OnboardingMode, LifecycleClass: r.LifecycleClass, Port: r.Port,
		SSHUsername: r.SSHUsername, SSHPublicKey: r.SSHPublicKey,
	}
	if p.OnboardingMode == "" {
		p.OnboardingMode = manualMode
	}
	if p.LifecycleClass == "" {
		p.LifecycleClass = inventory.ClassPersistent
	}
	if p.Port == 0 {
		p.Port = defaultSSHPort
	}
	return p
}

// MarkSilent moves active nodes without a heartbeat for olderThan to offline,
// with an audit row each, and returns their ids: of many callers at once, one
// moves a node. A node is never silent before it has been active for as long.
func (s *Store) MarkSilent(ctx context.Context, olderThan time.Duration) ([]string, error) {
	var silent, lost []string
	err := s.read(ctx, "looking for silent nodes", func(ctx context.Context) (err error) {
		silent, err = s.q.SilentNodes(ctx, olderThan.Seconds())
		return err
	})
	for _, id := range silent {
		moved, err := s.watch(ctx, id, lifecycle.ActionHeartbeatLost, systemActor, func(ctx context.Context, u *unit) (bool, error) {
			return u.StillSilent(ctx, id, olderThan.Seconds())
		})
		if err != nil {
			return lost, err
		}
		if moved {
			lost = append(lost, id)
		}
	}
	return lost, err
}

// watch makes a move of the watchdog when it is still due under the node's
// lock, and reports whether it did. A node that is in another state by now is
// left alone.
func (s *Store) watch(ctx context.Context, nodeID string, a lifecycle.Action, actor string,
	due func(context.Context, *unit) (bool, error),
) (moved bool, err error) {
	err = s.write(ctx, string(a)+" of node "+nodeID, func(ctx context.Context, u *unit) error {
		node, err := u.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		move, err := lifecycle.CheckMove(a, node.State)
		if err != nil {
			return nil //nolint:nilerr // an operation or another replica was first
		}
		if ok, err := due(ctx, u); err != nil || !ok {
			return err
		}
		u.note(audit.Event{Stream: nodeID, Actor: actor, Action: audit.ActionName(a), Target: nodeID,
			Result: audit.Succeeded, Detail: map[string]string{"from": string(node.State), "to": string(move.To)}})
		moved = true
		return u.moveNode(ctx, node, move.To)
	})
	return moved && err == nil, err
}
