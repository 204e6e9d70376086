package store

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The columns of each view.
const (
	nameColumns    = "n.node_id AS id, n.host, n.state"
	summaryColumns = nameColumns + `, n.port, n.sku, n.gpus_total, n.region_code, n.onboarding_mode, n.lifecycle_class,
		nullif(n.labels, '{}') AS labels, n.state_since, n.cordoned, n.incarnation, n.last_heartbeat_at, n.agent_version, n.created_at,
		n.identity_locked_at, n.identity_lock_reason, n.identity_locked_by, n.identity_lock_note, n.identity_alarm, n.identity_alarm_at,
		coalesce(extract(epoch FROM now() - n.identity_alarm_at), 0)::float8 AS identity_alarm_seconds`
	fullColumns = summaryColumns + `, n.ssh_username, n.ssh_public_key, n.identity_sequence, n.set_version,
		(n.set_hash <> '' AND NOT EXISTS (SELECT 1 FROM verifier_sets v WHERE v.version = n.set_version AND v.hash = n.set_hash)) AS set_lost,
		n.boot_id, n.workload_driver, n.probe, n.driver, n.driver_fault, n.agent_fault, n.uptime_seconds, n.workloads, n.facts`
	fromNodes = " FROM nodes n"
	nodeOrder = "n.host, n.node_id"
)

// The machines and certificates of nodes: the newest instance of each, and the
// certificates that it may use.
const (
	selectMachines = `SELECT DISTINCT ON (node_id) node_id, instance_id, provider, external_id, state,
		state_since, region, machine_type AS type, image, spot, ssh_keys FROM instances
		WHERE node_id = ANY ($1::uuid[]) ORDER BY node_id, created_at DESC`
	selectCertificates = `SELECT node_id, slot, subject, uri, issuer, serial, fingerprint, spki, not_before, not_after
		FROM node_certificates WHERE slot IN ('pending', 'current') AND node_id = ANY ($1::uuid[])`
)

// ListNodes implements adminapi.Nodes.
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
	if q.HostPrefix != "" {
		f.where("lower(n.host) LIKE " + f.arg(likePattern(q.HostPrefix)+"%"))
	}
	if q.HostPattern != "" {
		f.where("lower(n.host) LIKE " + f.arg(likePattern(q.HostPattern)))
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
	return s.nodes(ctx, f, q.View, q.Limit)
}

// nodes returns one page of nodes in a view.
func (s *Admin) nodes(ctx context.Context, f *filter, view adminapi.View, limit int) ([]wire.NodeView, []string, error) {
	type row struct {
		wire.NodeView
		IdentityLockedAt     *time.Time
		IdentityLockReason   string
		IdentityLockedBy     string
		IdentityLockNote     string
		IdentityAlarm        string
		IdentityAlarmAt      *time.Time
		IdentityAlarmSeconds float64
	}
	columns, known := map[adminapi.View]string{adminapi.ViewName: nameColumns, adminapi.ViewSummary: summaryColumns}[view]
	if !known {
		columns, view = fullColumns, adminapi.ViewFull
	}
	rows, next, err := page(ctx, s.db, listQuery{"listing nodes", "SELECT " + columns + fromNodes, nodeOrder, limit}, f,
		func(n row) []string { return []string{n.Host, n.ID} })
	nodes := make([]wire.NodeView, len(rows))
	for i, r := range rows {
		nodes[i] = r.NodeView
		nodes[i].IdentityLock = lockOf(r.IdentityLockedAt, r.IdentityLockReason, r.IdentityLockedBy, r.IdentityLockNote)
		if r.IdentityAlarmAt != nil && r.IdentityAlarmSeconds < trust.AlarmAge.Seconds() {
			nodes[i].IdentityAlarm = &trust.IdentityAlarm{Reason: r.IdentityAlarm, Since: *r.IdentityAlarmAt}
		}
	}
	if err != nil || view == adminapi.ViewName || len(nodes) == 0 {
		return nodes, next, err
	}
	return nodes, next, s.db.Call(ctx, "reading the details of nodes", func(ctx context.Context) error {
		return s.fillNodes(ctx, nodes, view)
	})
}

// fillNodes adds the rows of other tables: the operation in a summary, instances
// and certificates in the full view.
func (s *Admin) fillNodes(ctx context.Context, nodes []wire.NodeView, view adminapi.View) error {
	ids, byID := make([]string, len(nodes)), make(map[string]*wire.NodeView, len(nodes))
	for i := range nodes {
		ids[i], byID[nodes[i].ID] = nodes[i].ID, &nodes[i]
	}
	ops, err := list[wire.OperationSummary](ctx, s.db, openOperations, ids)
	for i := range ops {
		if v := byID[ops[i].NodeID]; v.Operation == nil { // the one that holds it is first
			v.Operation = &ops[i]
		}
	}
	if err != nil || view == adminapi.ViewSummary {
		return err
	}
	machines, err := list[struct {
		NodeID string
		lifecycle.Instance
	}](ctx, s.db, selectMachines, ids)
	if err != nil {
		return err
	}
	for i, m := range machines {
		byID[m.NodeID].Instance = &machines[i].Instance
	}
	certificates, err := list[struct {
		NodeID, Slot string
		trust.CertFacts
	}](ctx, s.db, selectCertificates, ids)
	if err != nil {
		return err
	}
	for i, c := range certificates {
		if c.Slot == slotPending {
			byID[c.NodeID].PendingIdentity = &certificates[i].CertFacts
		} else {
			byID[c.NodeID].Identity = &certificates[i].CertFacts
		}
	}
	if err := fillConditions(ctx, s.db, ids, byID); err != nil {
		return err
	}
	newest, err := s.db.q.NewestSetVersion(ctx)
	for _, v := range byID {
		v.NewestSetVersion = newest
	}
	return err
}

// Node implements adminapi.Nodes.
func (s *Admin) Node(ctx context.Context, idOrHost string) (wire.NodeView, error) {
	id, err := query(ctx, s.db, "finding node "+idOrHost, func(ctx context.Context) (string, error) {
		return s.nodeID(ctx, idOrHost)
	})
	if err != nil {
		return wire.NodeView{}, err
	}
	f := &filter{}
	f.id("n.node_id", id, errNoNode)
	nodes, _, err := s.nodes(ctx, f, adminapi.ViewFull, 1)
	if err == nil && len(nodes) == 0 {
		err = errNoNode(idOrHost)
	}
	if err != nil {
		return wire.NodeView{}, err
	}
	return nodes[0], nil
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

// SetNode implements adminapi.Nodes.
func (s *Admin) SetNode(ctx context.Context, nodeID string, c wire.NodeChange, by audit.Subject) (wire.NodeView, error) {
	err := s.db.write(ctx, "changing node "+nodeID, func(ctx context.Context, tx *tx) error {
		node, err := tx.lockNode(ctx, nodeID)
		if err != nil {
			return err
		}
		detail := map[string]string{}
		if err := correct(ctx, tx, node, c, detail); err != nil {
			return err
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

// correct changes the SKU, the region, the number of GPUs and the workload driver of a node,
// and describes the changes in detail.
func correct(ctx context.Context, tx *tx, n sqlc.LockNodeRow, c wire.NodeChange, detail map[string]string) error {
	if c.SKU+c.RegionCode != "" && n.State.Enrolled() {
		return schema.NewError(schema.KindInvalidRequest, "node %s is %s: its SKU and region are fixed once it has enrolled", n.Host, n.State).
			WithReason("enrolled").WithNext(registerAgain(n.Host, n.State))
	}
	to := sqlc.SetNodeRegistrationParams{NodeID: n.NodeID, SKU: cmp.Or(c.SKU, n.SKU), RegionCode: cmp.Or(c.RegionCode, n.RegionCode), GPUsTotal: n.GPUsTotal,
		WorkloadDriver: cmp.Or(c.WorkloadDriver, n.WorkloadDriver)}
	if to.SKU != n.SKU || c.GPUsTotal != nil {
		sku, err := checkSKU(ctx, tx, to.SKU, c.GPUsTotal, to.SKU == n.SKU)
		if err != nil {
			return err
		}
		if to.GPUsTotal = sku.MaxGPUs; c.GPUsTotal != nil {
			to.GPUsTotal = *c.GPUsTotal
		}
		if to.SKU != n.SKU {
			to.WorkloadDriver = cmp.Or(c.WorkloadDriver, sku.WorkloadDriver, n.WorkloadDriver)
		}
	}
	if c.UnsetWorkloadDriver {
		to.WorkloadDriver = ""
	}
	for _, change := range [][3]string{{"sku", n.SKU, to.SKU}, {"region", n.RegionCode, to.RegionCode},
		{"workload_driver", n.WorkloadDriver, to.WorkloadDriver}, {"gpus_total", strconv.Itoa(n.GPUsTotal), strconv.Itoa(to.GPUsTotal)}} {
		if change[1] != change[2] {
			detail[change[0]] = cmp.Or(change[1], "unset") + " to " + cmp.Or(change[2], "unset")
		}
	}
	return tx.SetNodeRegistration(ctx, to)
}

// registerAgain returns the commands that register an enrolled host again.
func registerAgain(host string, s lifecycle.NodeState) string {
	const register = "register the host again"
	remove := "gpuaas node remove " + host + ", then " + register
	retire := "gpuaas node retire " + host + ", then " + remove
	switch s {
	case lifecycle.NodeRemoved:
		return register
	case lifecycle.NodeTerminating: // ends as registered, and can be corrected then
		return lifecycle.OpCommand("show", lifecycle.ActionTerminate, host) + "; after the termination, repeat the change"
	case lifecycle.NodeRetired, lifecycle.NodeRemoving:
		return remove
	case lifecycle.NodeDraining: // cannot be retired before its end
		return lifecycle.OpCommand("show", lifecycle.ActionDrain, host) + "; after the drain, " + retire
	}
	return retire
}

func setLabels(ctx context.Context, tx *tx, nodeID string, set map[string]string, remove []string) error {
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
