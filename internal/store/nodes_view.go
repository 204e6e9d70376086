package store

import (
	"context"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Node finds a node by id or by host name, removed nodes last. KindNotFound if there
// is none.
func (s *Inventory) Node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	var view wire.NodeView
	err := s.db.Read(ctx, "reading node "+idOrHost, func(ctx context.Context) error {
		id := idOrHost
		if !schema.IsID(id) {
			found, err := s.db.q.FindNode(ctx, cleanText(idOrHost))
			if postgres.NotFound(err) {
				return errNoNode(idOrHost)
			}
			if err != nil {
				return err
			}
			id = found
		}
		node, err := s.db.q.GetNode(ctx, id)
		if postgres.NotFound(err) {
			return errNoNode(idOrHost)
		}
		if err != nil {
			return err
		}
		views, err := s.views(ctx, []sqlc.Node{node})
		if err == nil {
			view = views[0]
		}
		return err
	})
	return view, err
}

// Nodes lists all nodes by host name.
func (s *Inventory) Nodes(ctx context.Context) ([]wire.NodeView, error) {
	var views []wire.NodeView
	err := s.db.Read(ctx, "listing nodes", func(ctx context.Context) error {
		nodes, err := s.db.q.ListNodes(ctx)
		if err != nil {
			return err
		}
		views, err = s.views(ctx, nodes)
		return err
	})
	return views, err
}

// views returns the nodes' views with their related rows.
func (s *Inventory) views(ctx context.Context, nodes []sqlc.Node) ([]wire.NodeView, error) {
	views := make([]wire.NodeView, len(nodes))
	byID := make(map[string]*wire.NodeView, len(nodes))
	ids := make([]string, len(nodes))
	for i, n := range nodes {
		views[i], ids[i] = nodeView(n), n.NodeID
		byID[n.NodeID] = &views[i]
	}
	return views, s.fill(ctx, ids, byID)
}

// fill adds instances, identities, the newest verifier set and running operations to the views.
func (s *Inventory) fill(ctx context.Context, nodeIDs []string, byID map[string]*wire.NodeView) error {
	instances, err := s.db.q.ListInstances(ctx, nodeIDs)
	if err != nil {
		return err
	}
	for _, i := range instances {
		byID[i.NodeID].Instance = &lifecycle.Instance{InstanceID: i.InstanceID, Provider: i.Provider,
			ExternalID: i.ExternalID, State: i.State}
	}
	if err := s.fillIdentities(ctx, nodeIDs, byID); err != nil {
		return err
	}
	newest, err := s.db.q.NewestSetVersion(ctx)
	if err != nil {
		return err
	}
	for _, v := range byID {
		v.NewestSetVersion = newest
	}
	operations, err := s.db.q.RunningOperations(ctx, nodeIDs)
	for _, o := range operations {
		if v := byID[o.NodeID]; v.Operation == nil || o.OpSeq > 0 { // the one that holds it first
			summary := operationSummary(sqlc.ListOperationsRow(o))
			v.Operation = &summary
		}
	}
	return err
}

// fillIdentities adds the current and the pending certificate of each node.
func (s *Inventory) fillIdentities(ctx context.Context, nodeIDs []string, byID map[string]*wire.NodeView) error {
	certs, err := s.db.q.ListHeldCertificates(ctx, nodeIDs)
	if err != nil {
		return err
	}
	for _, c := range certs {
		facts := &trust.CertFacts{Subject: c.Subject, URI: c.URI, Issuer: c.Issuer, Serial: c.Serial,
			Fingerprint: c.Fingerprint, SPKI: c.SPKI, NotBefore: c.NotBefore, NotAfter: c.NotAfter}
		if c.Slot == "pending" {
			byID[c.NodeID].PendingIdentity = facts
		} else {
			byID[c.NodeID].Identity = facts
		}
	}
	return nil
}

func nodeView(n sqlc.Node) wire.NodeView {
	view := wire.NodeView{
		ID: n.NodeID, Host: n.Host, Port: n.Port, SSHUsername: n.SSHUsername, SSHPublicKey: n.SSHPublicKey,
		SKU: n.SKU, GPUsTotal: n.GPUsTotal, RegionCode: n.RegionCode, OnboardingMode: n.OnboardingMode,
		LifecycleClass: n.LifecycleClass, State: n.State, StateSince: n.StateSince, Cordoned: n.Cordoned,
		Incarnation: n.Incarnation, IdentitySequence: n.IdentitySequence, SetVersion: n.SetVersion, LastHeartbeatAt: n.LastHeartbeatAt, AgentVersion: n.AgentVersion,
		BootID: n.BootID, UptimeSeconds: n.UptimeSeconds, Workloads: n.Workloads, Facts: n.Facts, CreatedAt: n.CreatedAt,
	}
	if n.IdentityLockedAt != nil {
		view.IdentityLock = &trust.IdentityLock{Reason: n.IdentityLockReason, Since: *n.IdentityLockedAt}
	}
	return view
}
