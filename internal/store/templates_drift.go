package store

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/metrics"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/template"
)

const (
	// selectDrift reads nodes with their template, what they reported since they were enrolled, and the
	// drift that the last scan found. A node had the time to receive a verifier set after 10 minutes.
	selectDrift = `SELECT n.node_id, n.host, n.state, n.agent_version, n.set_version,
			coalesce((SELECT max(v.version) FROM verifier_sets v WHERE v.stored_at < now() - interval '10 minutes'), 0) AS newest_set,
			coalesce(n.labels ->> 'gpuaas/template', '') AS named, a.artifacts AS reported, a.reported_at,
			coalesce(t.name, '') AS template, coalesce(t.version, 0) AS version, t.artifacts AS declared, t.managed, coalesce(t.policy, '') AS policy,
			CASE WHEN d.ended_at IS NULL THEN d.drift END AS stored, coalesce(d.template, '') AS stored_template, coalesce(d.version, 0) AS stored_version,
			CASE WHEN d.ended_at IS NULL THEN d.since END AS since, coalesce(d.remedy::text, '') AS remedy, coalesce(d.remedy_refused, '') AS remedy_refused,
			coalesce(d.remedy_upgrade, '') AS remedy_upgrade, coalesce(d.remedy_incarnation, n.incarnation) = n.incarnation AS remedy_counts,
			coalesce((SELECT o.status FROM operations o WHERE o.operation_id = d.remedy AND o.ended_at IS NOT NULL), '') AS remedy_ended
		FROM nodes n
		LEFT JOIN template_assignments s ON s.kind = 'sku' AND s.value = n.sku
		LEFT JOIN template_assignments c ON c.kind = 'class' AND c.value = n.lifecycle_class
		LEFT JOIN templates t ON t.name = coalesce(n.labels ->> 'gpuaas/template', s.template, c.template) AND t.deleted_at IS NULL
		LEFT JOIN node_artifacts a ON a.node_id = n.node_id AND a.incarnation = n.incarnation
		LEFT JOIN node_drifts d ON d.node_id = n.node_id`
	// fleetDrift counts the stored differences.
	fleetDrift = `SELECT d.template, d.version, c.change, coalesce(x ->> 'name', '') AS name, coalesce(x ->> 'declared', '') AS declared,
			coalesce(x ->> 'reported', '') AS reported, count(*) AS nodes
		FROM node_drifts d CROSS JOIN (VALUES ('attach'), ('detach'), ('update')) c (change)
		CROSS JOIN jsonb_array_elements(coalesce(d.drift -> c.change, '[]')) x
		GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY nodes DESC, 1, 2, 3, 4, 5, 6 LIMIT $1`
)

// driftRow is a row of selectDrift.
type driftRow struct {
	NodeID, Host          string
	State                 lifecycle.NodeState
	AgentVersion          string
	SetVersion, NewestSet int64
	Named                 string
	Reported              map[string]string
	ReportedAt            *time.Time
	Template              string
	Version               int64
	Declared              map[string]string
	Managed               []string
	Policy                template.Policy
	Stored                *template.Drift
	StoredTemplate        string
	StoredVersion         int64
	Since                 *time.Time
	Remedy, RemedyRefused string
	// RemedyUpgrade is the version of the remedy, which RemedyCounts unless the node was enrolled again since.
	// RemedyEnded is the status of its operation, empty before it ended.
	RemedyUpgrade string
	RemedyCounts  bool
	RemedyEnded   lifecycle.OperationState
}

// hasMachine reports whether what the node reported is of a machine that it still has.
func (r driftRow) hasMachine() bool { return r.State.Enrolled() && !r.State.Refusing() }

// report compares the node with its template.
func (r driftRow) report() template.Report {
	out := template.Report{NodeID: r.NodeID, Host: r.Host, ReportedAt: r.ReportedAt, Since: r.Since, Remedy: r.Remedy, RemedyRefused: r.RemedyRefused}
	n := template.Node{Host: r.Host, Artifacts: r.Reported, AgentVersion: r.AgentVersion, VerifierSet: r.SetVersion, NewestSet: r.NewestSet}
	if !r.hasMachine() { // what an earlier machine reported is outdated
		n = template.Node{Host: r.Host, NewestSet: r.NewestSet}
		out.ReportedAt = nil
	}
	if r.State.Refusing() {
		out.Next = "the node is removed, and not compared"
		out.Describe(nil, n)
		return out
	}
	if r.Template == "" {
		if r.Named != "" {
			out.Next = fmt.Sprintf("its label %s=%s names no template: gpuaas node set %s --label %[1]s-", template.Label, r.Named, r.Host)
		}
		out.Describe(nil, n)
		return out
	}
	out.Describe(&template.Template{Name: r.Template, Version: r.Version,
		Definition: template.Definition{Artifacts: r.Declared, Managed: r.Managed, Policy: r.Policy}}, n)
	if r.RemedyEnded != "" && r.RemedyCounts && out.Upgrade != "" && out.Upgrade == r.RemedyUpgrade && out.Policy == template.PolicyProceed {
		out.Next = fmt.Sprintf("operation %s (%s) is not repeated: see gpuaas op show %[3]s --operation %[1]s, remove the cause, then: gpuaas node drift %[3]s --remediate",
			r.Remedy, r.RemedyEnded, r.Host)
	}
	return out
}

// Drift implements adminapi.Templates.
func (s *Templates) Drift(ctx context.Context, nodeID string) (template.Report, error) {
	f := &filter{}
	f.id("n.node_id", nodeID, errNoNode)
	rows, _, err := page(ctx, s.db, listQuery{"comparing node " + nodeID + " with its template", selectDrift, "n.node_id", 1}, f, driftKey)
	if err == nil && len(rows) == 0 {
		err = errNoNode(nodeID)
	}
	if err != nil {
		return template.Report{}, err
	}
	r := rows[0].report()
	if r.Policy == template.PolicyProceed && r.Upgrade != "" && r.Next == "" {
		r.Next, err = s.withheld(ctx, r)
	}
	return r, err
}

// withheld is the next step for a node whose version too many nodes received and do not run, "" otherwise.
func (s *Templates) withheld(ctx context.Context, r template.Report) (string, error) {
	uncured, err := query(ctx, s.db, "counting upgrades without effect", func(ctx context.Context) ([]sqlc.UncuredRemediesRow, error) {
		return s.db.q.UncuredRemedies(ctx, remedyClaimFor.Seconds())
	})
	for _, u := range uncured {
		if u.Upgrade == r.Upgrade && int(u.Nodes) >= activities.MaxRemedies {
			return fmt.Sprintf("%d nodes received %s and do not run it, and no further node receives it: see gpuaas op list --action upgrade-agent", u.Nodes, r.Upgrade), nil
		}
	}
	return "", err
}

func driftKey(r driftRow) []string { return []string{r.NodeID} }

// FleetDrift implements adminapi.Templates.
func (s *Templates) FleetDrift(ctx context.Context) (fleet template.Fleet, err error) {
	return query(ctx, s.db, "counting the drift of nodes", func(ctx context.Context) (template.Fleet, error) {
		counts, err := list[template.Count](ctx, s.db, fleetDrift, template.MaxCounts)
		if err != nil {
			return template.Fleet{}, err
		}
		nodes, err := s.db.q.CountDrifts(ctx)
		return template.Fleet{Nodes: nodes, Counts: append([]template.Count{}, counts...)}, err
	})
}

// DriftCounts counts the nodes that differ from their template by template, change and artifact, for the
// gauge.
func (s *Inventory) DriftCounts(ctx context.Context) ([]metrics.DriftCount, error) {
	rows, err := query(ctx, s.db, "counting the drift of nodes", s.db.q.DriftCounts)
	return convert(rows, func(r sqlc.DriftCountsRow) metrics.DriftCount { return metrics.DriftCount(r) }), err
}

// storeArtifacts stores what a node reported. Nothing changes if it has begun another incarnation.
func storeArtifacts(ctx context.Context, db *db, nodeID string, incarnation int64, artifacts map[string]string) error {
	raw, err := json.Marshal(artifacts)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the artifacts of node %s", nodeID)
	}
	_, err = query(ctx, db, "storing the artifacts of node "+nodeID, func(ctx context.Context) (int64, error) {
		return db.q.PutArtifacts(ctx, raw, nodeID, incarnation)
	})
	return err
}

// ScanDrift implements activities.Drifts. Each node that changed has a transaction of its own.
func (s *Templates) ScanDrift(ctx context.Context, after string, limit int) (b activities.DriftBatch, err error) {
	f := &filter{}
	f.where("t.name IS NOT NULL AND n.state <> 'removed' OR d.node_id IS NOT NULL AND d.ended_at IS NULL")
	if after != "" {
		f.where("n.node_id > " + f.arg(after) + "::uuid")
	}
	rows, next, err := page(ctx, s.db, listQuery{"comparing nodes with their templates", selectDrift, "n.node_id", limit}, f, driftKey)
	if err != nil {
		return b, err
	}
	for _, r := range rows {
		report := r.report()
		changed, err := s.storeDrift(ctx, r, report)
		if err != nil {
			return b, err
		}
		b.Nodes++
		if report.Drifted {
			b.Drifted++
		}
		if changed {
			b.Changed++
		}
	}
	if len(next) > 0 {
		b.Next = next[0]
	}
	return b, nil
}

// storeDrift stores the drift of a node if it changed, with a signal, and reports whether it did.
func (s *Templates) storeDrift(ctx context.Context, r driftRow, is template.Report) (changed bool, err error) {
	drift := stored(is.Drift)
	moved := r.StoredTemplate != is.Template || r.StoredVersion != is.Version
	switch {
	case !is.Drifted && r.Stored == nil, is.Drifted && !moved && r.Stored != nil && reflect.DeepEqual(*r.Stored, drift):
		return false, nil
	}
	raw, err := json.Marshal(drift)
	if err != nil {
		return false, schema.Wrap(schema.KindInternal, err, "encoding the drift of node %s", r.NodeID)
	}
	return write(ctx, s.db, "storing the drift of node "+r.NodeID, func(ctx context.Context, tx *tx) (bool, error) {
		if _, err := tx.lockNode(ctx, r.NodeID); err != nil {
			return false, err
		}
		var detail string
		if is.Drifted {
			rows, err := tx.PutDrift(ctx, sqlc.PutDriftParams{NodeID: r.NodeID, Template: is.Template, Version: is.Version, Drift: raw, Upgrade: is.Upgrade})
			if err != nil {
				return false, err
			}
			if rows == 0 {
				return false, tx.MoveDrift(ctx, is.Template, is.Version, r.NodeID)
			}
			if r.Stored != nil && !moved && r.Stored.String() == drift.String() {
				return true, nil // the same artifacts in other versions: a node could cause a signal with each scan
			}
			detail = fmt.Sprintf("differs from template %s version %d: %s", is.Template, is.Version, is.Drift)
		} else {
			rows, err := tx.EndDrift(ctx, r.NodeID)
			if err != nil || len(rows) == 0 {
				return false, err
			}
			if detail = ended(r, is); detail == "" {
				return true, nil
			}
		}
		return true, recordSignal(ctx, tx, health.Signal{Type: health.SignalDrift, Source: health.SourceDrift, NodeID: r.NodeID, Detail: detail})
	})
}

// stored is a drift without its next steps, which each reader gets from the comparison.
func stored(d template.Drift) template.Drift {
	without := func(list []template.Difference) []template.Difference {
		return convert(list, func(x template.Difference) template.Difference { x.Next = ""; return x })
	}
	return template.Drift{Attach: without(d.Attach), Detach: without(d.Detach), Update: without(d.Update)}
}

// ended is the detail of the signal about a drift that ended, "" for a node without a machine.
func ended(r driftRow, is template.Report) string {
	switch {
	case !r.hasMachine():
		return ""
	case is.Status == template.StatusNoTemplate:
		return "has no template any longer; the last one was " + r.StoredTemplate
	case is.Status == template.StatusUnknown:
		return fmt.Sprintf("has not reported on everything that template %s version %d declares", is.Template, is.Version)
	}
	return fmt.Sprintf("matches template %s version %d again", is.Template, is.Version)
}
