package store

import (
	"context"

	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxOperations bounds what Operations lists.
const maxOperations = 1000

// Node finds a node by id, or by host name among the nodes that are not removed
// and then among the removed. KindNotFound otherwise.
func (s *Store) Node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	var view wire.NodeView
	err := s.read(ctx, "reading node "+idOrHost, func(ctx context.Context) error {
		id := idOrHost
		if !schema.IsID(id) {
			found, err := s.q.FindNode(ctx, cleanText(idOrHost))
			if notFound(err) {
				return errNoNode(idOrHost)
			}
			if err != nil {
				return err
			}
			id = found
		}
		node, err := s.q.GetNode(ctx, id)
		if notFound(err) {
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
func (s *Store) Nodes(ctx context.Context) ([]wire.NodeView, error) {
	var views []wire.NodeView
	err := s.read(ctx, "listing nodes", func(ctx context.Context) error {
		nodes, err := s.q.ListNodes(ctx)
		if err != nil {
			return err
		}
		views, err = s.views(ctx, nodes)
		return err
	})
	return views, err
}

// views makes the nodes' views, with what belongs to each.
func (s *Store) views(ctx context.Context, nodes []sqlc.Node) ([]wire.NodeView, error) {
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
func (s *Store) fill(ctx context.Context, nodeIDs []string, byID map[string]*wire.NodeView) error {
	instances, err := s.q.ListInstances(ctx, nodeIDs)
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
	newest, err := s.q.NewestSetVersion(ctx)
	if err != nil {
		return err
	}
	for _, v := range byID {
		v.NewestSetVersion = newest
	}
	operations, err := s.q.RunningOperations(ctx, nodeIDs)
	for _, o := range operations {
		if v := byID[o.NodeID]; v.Operation == nil || o.OpSeq > 0 { // the one that holds it first
			summary := operationSummary(sqlc.ListOperationsRow(o))
			v.Operation = &summary
		}
	}
	return err
}

// fillIdentities adds the certificate in use and the one that waits for its
// first use.
func (s *Store) fillIdentities(ctx context.Context, nodeIDs []string, byID map[string]*wire.NodeView) error {
	certs, err := s.q.ListHeldCertificates(ctx, nodeIDs)
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

// Operations lists operations, newest first and at most 1000: of one node when
// nodeID is not empty, only those that are not over when open.
func (s *Store) Operations(ctx context.Context, nodeID string, open bool) ([]wire.OperationSummary, error) {
	var list []wire.OperationSummary
	err := s.read(ctx, "listing operations", func(ctx context.Context) error {
		var filter *string
		if nodeID != "" {
			if !schema.IsID(nodeID) {
				return errNoNode(nodeID)
			}
			filter = &nodeID
		}
		rows, err := s.q.ListOperations(ctx, filter, open, maxOperations)
		list = make([]wire.OperationSummary, len(rows))
		for i, r := range rows {
			list[i] = operationSummary(r)
		}
		return err
	})
	return list, err
}

func operationSummary(o sqlc.ListOperationsRow) wire.OperationSummary {
	sum := wire.OperationSummary{
		OperationID: o.OperationID, NodeID: o.NodeID, Host: o.Host, WorkflowID: o.WorkflowID, RunID: o.RunID,
		Action: o.Action, OpSeq: o.OpSeq, Status: o.Status, Phase: o.Phase, WaitingOn: lifecycle.AttentionNone,
		Stuck: o.Stuck, Actor: o.Actor, Reason: o.Reason, CorrelationID: o.CorrelationID, Outcome: o.Outcome,
		StartedAt: o.StartedAt, EndedAt: o.EndedAt,
	}
	if o.Stuck != nil {
		sum.WaitingOn = o.Stuck.WaitingOn
	}
	return sum
}

// NodeCounts counts nodes by state, for the gauges.
func (s *Store) NodeCounts(ctx context.Context) ([]metrics.NodeCount, error) {
	var counts []metrics.NodeCount
	err := s.read(ctx, "counting nodes", func(ctx context.Context) error {
		rows, err := s.q.NodeCounts(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.NodeCount(r))
		}
		return err
	})
	return counts, err
}

// StuckCounts counts parked operations by phase and reason, for the gauges.
func (s *Store) StuckCounts(ctx context.Context) ([]metrics.StuckCount, error) {
	var counts []metrics.StuckCount
	err := s.read(ctx, "counting parked operations", func(ctx context.Context) error {
		rows, err := s.q.StuckCounts(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.StuckCount(r))
		}
		return err
	})
	return counts, err
}

// TaskLeases counts unfinished tasks by status, for the gauges.
func (s *Store) TaskLeases(ctx context.Context) ([]metrics.TaskCount, error) {
	var counts []metrics.TaskCount
	err := s.read(ctx, "counting tasks", func(ctx context.Context) error {
		rows, err := s.q.TaskLeases(ctx)
		for _, r := range rows {
			counts = append(counts, metrics.TaskCount(r))
		}
		return err
	})
	return counts, err
}
