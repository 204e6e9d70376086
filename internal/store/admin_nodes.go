package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeColumns are the columns of each view, in the order of scanNode.
const (
	nameColumns    = "n.node_id, n.host, n.state"
	summaryColumns = nameColumns + `, n.port, n.sku, n.gpus_total, n.region_code, n.onboarding_mode, n.lifecycle_class,
		n.labels, n.state_since, n.cordoned, n.incarnation, n.last_heartbeat_at, n.agent_version, n.created_at,
		n.identity_locked_at, n.identity_lock_reason`
	fromNodes   = " FROM nodes n"
	nodeOrder   = "n.host, n.node_id"
	fullColumns = summaryColumns + `, n.ssh_username, n.ssh_public_key, n.identity_sequence, n.set_version,
		n.boot_id, n.uptime_seconds, n.workloads, n.facts`
)

// scanNode reads a row of the view's columns.
func scanNode(view adminapi.View) pgx.RowToFunc[wire.NodeView] {
	return func(row pgx.CollectableRow) (wire.NodeView, error) {
		var v wire.NodeView
		var lock trust.IdentityLock
		var lockedAt *time.Time
		dest := []any{&v.ID, &v.Host, &v.State}
		if view != adminapi.ViewName {
			dest = append(dest, &v.Port, &v.SKU, &v.GPUsTotal, &v.RegionCode, &v.OnboardingMode, &v.LifecycleClass, &v.Labels,
				&v.StateSince, &v.Cordoned, &v.Incarnation, &v.LastHeartbeatAt, &v.AgentVersion, &v.CreatedAt, &lockedAt, &lock.Reason)
		}
		if view == adminapi.ViewFull {
			dest = append(dest, &v.SSHUsername, &v.SSHPublicKey, &v.IdentitySequence, &v.SetVersion, &v.BootID,
				&v.UptimeSeconds, &v.Workloads, &v.Facts)
		}
		err := row.Scan(dest...)
		if len(v.Labels) == 0 {
			v.Labels = nil
		}
		if lockedAt != nil {
			lock.Since = *lockedAt
			v.IdentityLock = &lock
		}
		return v, err
	}
}

// ListNodes implements adminapi.Views.
func (s *Admin) ListNodes(ctx context.Context, q adminapi.NodeQuery) (nodes []wire.NodeView, next []string, err error) {
	f := &filter{}
	anyOf(f, "n.state", q.States)
	anyOf(f, "n.sku", q.SKUs)
	anyOf(f, "n.region_code", q.Regions)
	anyOf(f, "n.onboarding_mode", q.Providers)
	if len(q.Issuers) > 0 {
		f.where("EXISTS (SELECT 1 FROM node_certificates c WHERE c.node_id = n.node_id AND c.slot = 'current' AND c.issuer = ANY (" +
			f.arg(q.Issuers) + "::text[]))")
	}
	for _, pattern := range []string{suffixed(likePattern(q.HostPrefix), "%"), likePattern(q.HostPattern)} {
		if pattern != "" {
			f.where("lower(n.host) LIKE " + f.arg(pattern))
		}
	}
	if !q.Removed && !slices.Contains(q.States, lifecycle.NodeRemoved) {
		f.where("n.state <> 'removed'")
	}
	f.selector(q.Selector)
	if len(q.After) > 0 {
		if !schema.IsID(q.After[1]) {
			return nil, nil, errPageToken()
		}
		f.where("(n.host, n.node_id) > (" + f.arg(q.After[0]) + ", " + f.arg(q.After[1]) + "::uuid)")
	}
	err = s.db.Read(ctx, "listing nodes", func(ctx context.Context) error {
		nodes, err = s.nodes(ctx, f, q.View, q.Limit)
		if err != nil {
			return err
		}
		nodes, next = trim(nodes, q.Limit, func(n wire.NodeView) []string { return []string{n.Host, n.ID} })
		return s.fillNodes(ctx, nodes, q.View)
	})
	return nodes, next, err
}

func suffixed(s, suffix string) string {
	if s == "" {
		return ""
	}
	return s + suffix
}

func (s *Admin) nodes(ctx context.Context, f *filter, view adminapi.View, limit int) ([]wire.NodeView, error) {
	columns := map[adminapi.View]string{adminapi.ViewName: nameColumns, adminapi.ViewSummary: summaryColumns}[view]
	if columns == "" {
		columns, view = fullColumns, adminapi.ViewFull
	}
	rows, err := s.db.Pool().Query(ctx, f.sql("SELECT "+columns+fromNodes, nodeOrder, limit), f.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanNode(view))
}

// fillNodes adds what other tables have of the nodes: the operation in a summary,
// instances and certificates in the full view.
func (s *Admin) fillNodes(ctx context.Context, nodes []wire.NodeView, view adminapi.View) error {
	if view == adminapi.ViewName || len(nodes) == 0 {
		return nil
	}
	ids, byID := make([]string, len(nodes)), make(map[string]*wire.NodeView, len(nodes))
	for i := range nodes {
		ids[i], byID[nodes[i].ID] = nodes[i].ID, &nodes[i]
	}
	ops, err := s.operations(ctx, openFilter(ids), openOrder, len(ids)*2)
	if err != nil {
		return err
	}
	for i := range ops {
		if v := byID[ops[i].NodeID]; v.Operation == nil { // the one that holds it is first
			v.Operation = &ops[i]
		}
	}
	if view == adminapi.ViewSummary {
		return nil
	}
	return s.fillMachines(ctx, ids, byID)
}

func (s *Admin) fillMachines(ctx context.Context, ids []string, byID map[string]*wire.NodeView) error {
	instances, err := s.db.q.ListInstances(ctx, ids)
	if err != nil {
		return err
	}
	for _, i := range instances {
		byID[i.NodeID].Instance = &lifecycle.Instance{InstanceID: i.InstanceID, Provider: i.Provider, ExternalID: i.ExternalID, State: i.State}
	}
	certs, err := s.db.q.ListHeldCertificates(ctx, ids)
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
	newest, err := s.db.q.NewestSetVersion(ctx)
	for _, v := range byID {
		v.NewestSetVersion = newest
	}
	return err
}

// Node implements adminapi.Views.
func (s *Admin) Node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	var view wire.NodeView
	err := s.db.Read(ctx, "reading node "+idOrHost, func(ctx context.Context) error {
		id, err := s.nodeID(ctx, idOrHost)
		if err != nil {
			return err
		}
		nodes, err := s.nodes(ctx, nodeFilter(id), adminapi.ViewFull, 1)
		if err != nil {
			return err
		}
		if len(nodes) == 0 {
			return errNoNode(idOrHost)
		}
		err = s.fillNodes(ctx, nodes, adminapi.ViewFull)
		view = nodes[0]
		return err
	})
	return view, err
}

// nodeFilter selects one node.
func nodeFilter(nodeID string) *filter {
	f := &filter{}
	f.where("n.node_id = " + f.arg(nodeID) + "::uuid")
	return f
}

func (s *Admin) nodeID(ctx context.Context, idOrHost string) (string, error) {
	if schema.IsID(idOrHost) {
		return idOrHost, nil
	}
	id, err := s.db.q.FindNode(ctx, cleanText(idOrHost))
	if postgres.NotFound(err) {
		return "", s.noNode(ctx, idOrHost)
	}
	return id, err
}

// noNode is errNoNode with the host names that begin alike, so that a mistyped
// name is seen at once.
func (s *Admin) noNode(ctx context.Context, host string) error {
	refusal := schema.NewError(schema.KindNotFound, "no node %q", host).WithNext("gpuaas node list")
	prefix := host[:min(len(host), max(3, len(host)-2))]
	near, err := s.db.q.HostsLike(ctx, likePattern(cleanText(prefix))+"%")
	if err == nil && len(near) > 0 {
		refusal.Message += "; did you mean " + strings.Join(near, ", ") + "?"
	}
	return refusal
}

// SetNode implements adminapi.Views.
func (s *Admin) SetNode(ctx context.Context, nodeID string, c wire.NodeChange, by audit.Subject) (wire.NodeView, error) {
	err := s.db.write(ctx, "changing node "+nodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		detail := map[string]string{}
		if c.GPUsTotal != nil {
			sku, err := tx.GetSKU(ctx, node.SKU)
			if err != nil {
				return err
			}
			if err := inventory.SKU(sku).CheckRegistration(*c.GPUsTotal); err != nil {
				return err
			}
			if err := tx.SetNodeGPUs(ctx, *c.GPUsTotal, nodeID); err != nil {
				return err
			}
			detail["gpus_total"] = strconv.Itoa(node.GPUsTotal) + " to " + strconv.Itoa(*c.GPUsTotal)
		}
		if len(c.Labels)+len(c.RemoveLabels) > 0 {
			if err := setLabels(ctx, tx, nodeID, c.Labels, c.RemoveLabels); err != nil {
				return err
			}
			detail["labels"] = describeLabels(c.Labels, c.RemoveLabels)
		}
		tx.note(audit.Event{Stream: nodeID, Actor: by.Actor, Via: by.Via, Action: audit.NodeSet, Target: nodeID, Result: audit.Succeeded,
			Reason: c.Reason, CorrelationID: by.CorrelationID, Detail: detail})
		return nil
	})
	if err != nil {
		return wire.NodeView{}, err
	}
	return s.Node(ctx, nodeID)
}

func setLabels(ctx context.Context, tx *tx, nodeID string, set map[string]string, remove []string) error {
	if set == nil {
		set = map[string]string{}
	}
	if remove == nil {
		remove = []string{}
	}
	text, err := json.Marshal(set)
	if err != nil {
		return err
	}
	return tx.SetNodeLabels(ctx, remove, text, nodeID)
}

// describeLabels is the change in the words of the command line: k=v k-.
func describeLabels(set map[string]string, remove []string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(set)) {
		words = append(words, k+"="+set[k])
	}
	for _, k := range remove {
		words = append(words, k+"-")
	}
	return strings.Join(words, " ")
}
