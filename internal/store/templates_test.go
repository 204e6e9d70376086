package store_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// declare stores a template for the SKU cpu-dev.
func (e *env) declare(name string, artifacts map[string]string, change ...func(*template.Definition)) template.Template {
	e.t.Helper()
	c := template.Change{Definition: template.Definition{SKUs: []string{"cpu-dev"}, Artifacts: artifacts}, Reason: "TCK-12"}
	for _, f := range change {
		f(&c.Definition)
	}
	require.NoError(e.t, c.Check())
	var releases trust.SignedReleases
	if c.Policy == template.PolicyProceed {
		releases = trust.SignedReleases{AMD64: "release-of-" + artifacts["agent"], ARM64: "arm64-release-of-" + artifacts["agent"]}
	}
	t, err := e.Templates.SetTemplate(e.t.Context(), name, c, releases, operator)
	require.NoError(e.t, err)
	return t
}

// reports stores a heartbeat with artifacts.
func (e *env) reports(caller nodeapi.Caller, agent string, artifacts map[string]string) {
	e.t.Helper()
	require.NoError(e.t, e.Heartbeat(e.t.Context(), caller, wire.Heartbeat{AgentVersion: agent, BootID: "b", Phase: wire.PhaseReady, Artifacts: artifacts}))
}

// scan scans all nodes with small batches.
func (e *env) scan() (sum activities.DriftBatch) {
	e.t.Helper()
	for more := true; more; {
		b, err := e.Templates.ScanDrift(e.t.Context(), sum.Next, 2)
		require.NoError(e.t, err)
		sum = activities.DriftBatch{Nodes: sum.Nodes + b.Nodes, Drifted: sum.Drifted + b.Drifted, Changed: sum.Changed + b.Changed, Next: b.Next}
		more = b.Next != ""
	}
	return sum
}

// driftSignals are the details of the node's signals about drift, the oldest first.
func (e *env) driftSignals(nodeID string) (details []string) {
	e.t.Helper()
	list, _, err := e.ListSignals(e.t.Context(), adminapi.SignalQuery{Page: all, NodeID: nodeID, Types: []health.SignalType{health.SignalDrift}})
	require.NoError(e.t, err)
	for _, s := range slices.Backward(list) {
		details = append(details, s.Detail)
	}
	return details
}

func (e *env) drift(nodeID string) template.Report {
	e.t.Helper()
	r, err := e.Templates.Drift(e.t.Context(), nodeID)
	require.NoError(e.t, err)
	return r
}

func TestTemplates(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	set := func(kernel string) func() { return func() { e.declare("dev", map[string]string{"kernel": kernel}) } }
	require.Equal(t, []string{"templates.set succeeded TCK-12"}, e.changes(audit.SystemStream, func() { set("6.8")(); set("6.8")() }), "the second one changes nothing")
	require.Equal(t, map[string]string{"version": "1", "skus": "to cpu-dev", "policy": "to notify", "artifact kernel": "to 6.8"}, e.chain(audit.SystemStream)[0].Detail)
	set("6.9")()
	require.Equal(t, map[string]string{"version": "2", "artifact kernel": "6.8 to 6.9"}, e.chain(audit.SystemStream)[1].Detail)
	got, err := e.Templates.Template(ctx, "dev")
	require.NoError(t, err)
	require.Equal(t, template.Template{Name: "dev", Version: 2, UpdatedAt: got.UpdatedAt, UpdatedBy: operator.Actor,
		Definition: template.Definition{SKUs: []string{"cpu-dev"}, Classes: []inventory.Class{}, Artifacts: map[string]string{"kernel": "6.9"}, Managed: []string{}, Policy: template.PolicyNotify}}, got)

	require.Equal(t, []string{"templates.set refused template_assigned"}, e.changes(audit.SystemStream, func() {
		_, err := e.Templates.SetTemplate(ctx, "other", template.Change{Definition: template.Definition{SKUs: []string{"cpu-dev"}, Artifacts: map[string]string{"kernel": "1"}, Policy: template.PolicyNotify}}, trust.SignedReleases{}, operator)
		requireKind(t, err, schema.KindAlreadyExists, "template_assigned")
		require.Equal(t, "gpuaas template show dev", schema.AsError(err).Next)
	}))
	_, err = e.Templates.SetTemplate(ctx, "other", template.Change{Definition: template.Definition{SKUs: []string{"b300"}, Artifacts: map[string]string{"kernel": "1"}, Policy: template.PolicyNotify}}, trust.SignedReleases{}, operator)
	requireKind(t, err, schema.KindInvalidRequest, "sku_unknown")
	list, err := e.Templates.ListTemplates(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1, "a refused request stores nothing")

	require.Equal(t, []string{"templates.delete succeeded unused"}, e.changes(audit.SystemStream, func() {
		_, err := e.Templates.DeleteTemplate(ctx, "dev", "unused", operator)
		require.NoError(t, err)
	}))
	for _, name := range []string{"dev", "never"} {
		_, err = e.Templates.DeleteTemplate(ctx, name, "", operator)
		requireKind(t, err, schema.KindNotFound, "")
		_, err = e.Templates.Template(ctx, name)
		requireKind(t, err, schema.KindNotFound, "")
	}
	require.EqualValues(t, 3, e.declare("dev", map[string]string{"kernel": "6.9"}).Version, "versions continue after a deletion")
}

// Two requests that create one template or assign one SKU at the same time: one is stored.
func TestConcurrentTemplates(t *testing.T) {
	e := setup(t)
	results := make(chan error, 8)
	for i := range 8 {
		go func() {
			_, err := e.Templates.SetTemplate(t.Context(), []string{"a", "b"}[i%2], template.Change{Definition: template.Definition{SKUs: []string{"cpu-dev"},
				Artifacts: map[string]string{"kernel": strings.Repeat("1", i+1)}, Policy: template.PolicyNotify}}, trust.SignedReleases{}, operator)
			results <- err
		}()
	}
	for range 8 {
		if err := <-results; err != nil {
			require.Contains(t, []schema.Kind{schema.KindAlreadyExists, schema.KindServiceUnavailable}, schema.KindOf(err), err.Error())
		}
	}
	list, err := e.Templates.ListTemplates(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// A node's template is that of its label, of its SKU, or of its class.
func TestTemplateOfNode(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.8"})
	require.Equal(t, template.StatusNoTemplate, e.drift(caller.NodeID).Status)
	none := func(d *template.Definition) { d.SKUs = nil }
	e.declare("by-class", map[string]string{"kernel": "c"}, none, func(d *template.Definition) { d.Classes = []inventory.Class{inventory.ClassPersistent} })
	require.Equal(t, "by-class", e.drift(caller.NodeID).Template)
	e.declare("by-sku", map[string]string{"kernel": "s"})
	require.Equal(t, "by-sku", e.drift(caller.NodeID).Template)
	e.declare("by-label", map[string]string{"kernel": "l"}, none)
	label := func(change wire.NodeChange) {
		_, err := e.SetNode(t.Context(), caller.NodeID, change, operator)
		require.NoError(t, err)
	}
	label(wire.NodeChange{Labels: map[string]string{template.Label: "by-label"}})
	require.Equal(t, "by-label", e.drift(caller.NodeID).Template)
	label(wire.NodeChange{Labels: map[string]string{template.Label: "gone"}})
	r := e.drift(caller.NodeID)
	require.Equal(t, template.StatusNoTemplate, r.Status)
	require.Contains(t, r.Next, "names no template")
	label(wire.NodeChange{RemoveLabels: []string{template.Label}})
	require.Equal(t, "by-sku", e.drift(caller.NodeID).Template)
}

// A drift is one signal, another drift another one, and its end the last one. A second scan changes nothing.
func TestScanDrift(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	caller, _, _ := e.enroll()
	other, _, _ := e.enroll()
	e.inState(lifecycle.NodeRegistered)
	same := map[string]string{"kernel": "6.8", "gpu_driver": "570"}
	e.declare("dev", same, func(d *template.Definition) { d.Managed = []string{"module/*"} })
	require.Equal(t, activities.DriftBatch{Nodes: 3}, e.scan(), "what nodes did not report is unknown")
	require.Equal(t, []string{"gpu_driver", "kernel"}, e.drift(caller.NodeID).Unknown)
	for _, c := range []nodeapi.Caller{caller, other} {
		e.reports(c, "v1.0.0", same)
	}
	require.Equal(t, activities.DriftBatch{Nodes: 3}, e.scan())
	require.Equal(t, template.StatusInSync, e.drift(caller.NodeID).Status)
	require.NotNil(t, e.drift(caller.NodeID).ReportedAt)

	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.9", "module/x": "1\x1b"[:1]})
	require.Equal(t, activities.DriftBatch{Nodes: 3, Drifted: 1, Changed: 1}, e.scan())
	require.Equal(t, activities.DriftBatch{Nodes: 3, Drifted: 1}, e.scan(), "an unchanged drift is no second signal")
	first := "differs from template dev version 1: attach gpu_driver; detach module/x; update kernel"
	require.Equal(t, []string{first}, e.driftSignals(caller.NodeID))
	r := e.drift(caller.NodeID)
	require.True(t, r.Drifted)
	require.NotNil(t, r.Since)
	require.Equal(t, "6.9", r.Update[0].Reported)
	fleet, err := e.Templates.FleetDrift(ctx)
	require.NoError(t, err)
	require.Equal(t, template.Fleet{Nodes: 1, Counts: []template.Count{
		{Template: "dev", Version: 1, Change: "attach", Name: "gpu_driver", Declared: "570", Nodes: 1},
		{Template: "dev", Version: 1, Change: "detach", Name: "module/x", Reported: "1", Nodes: 1},
		{Template: "dev", Version: 1, Change: "update", Name: "kernel", Declared: "6.8", Reported: "6.9", Nodes: 1}}}, fleet)

	e.declare("dev", same, func(d *template.Definition) { d.Managed = []string{"module/x"} })
	require.Equal(t, activities.DriftBatch{Nodes: 3, Drifted: 1}, e.scan(), "the same drift from the next version")
	require.EqualValues(t, 2, e.number("SELECT version FROM node_drifts"))
	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.9", "gpu_driver": "570"})
	require.Equal(t, 1, e.scan().Changed)
	e.reports(caller, "v1.0.0", same)
	require.Equal(t, activities.DriftBatch{Nodes: 3, Changed: 1}, e.scan())
	require.Equal(t, []string{first, "differs from template dev version 2: update kernel", "matches template dev version 2 again"}, e.driftSignals(caller.NodeID))
	require.Zero(t, e.number("SELECT count(*) FROM node_drifts"))

	e.reports(other, "v1.0.0", map[string]string{"kernel": "6.9"})
	e.scan()
	_, err = e.Templates.DeleteTemplate(ctx, "dev", "", operator)
	require.NoError(t, err)
	e.scan()
	require.Equal(t, []string{"differs from template dev version 2: attach gpu_driver; update kernel", "has no template any longer; the last one was dev"}, e.driftSignals(other.NodeID))
}

// What an earlier incarnation reported does not count, and a heartbeat of it stores nothing.
func TestArtifactsOfIncarnation(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	e.declare("dev", map[string]string{"kernel": "6.8"})
	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.9"})
	e.scan()
	e.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = $1", caller.NodeID)
	require.Equal(t, template.StatusUnknown, e.drift(caller.NodeID).Status)
	e.scan()
	require.Equal(t, "has not reported on everything that template dev version 1 declares", e.driftSignals(caller.NodeID)[1])
	require.Error(t, e.Heartbeat(t.Context(), caller, wire.Heartbeat{BootID: "b", Phase: wire.PhaseReady, Artifacts: map[string]string{"kernel": "6.8"}}))
	require.Equal(t, template.StatusUnknown, e.drift(caller.NodeID).Status)
}

// Two scans at the same time record one signal.
func TestConcurrentScans(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	e.declare("dev", map[string]string{"kernel": "6.8"})
	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.9"})
	done := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := e.Templates.ScanDrift(t.Context(), "", 100)
			done <- err
		}()
	}
	for range 4 {
		require.NoError(t, <-done)
	}
	require.Len(t, e.driftSignals(caller.NodeID), 1)
}

// The policy notify_and_proceed chooses the upgrade of each older agent once, and few at a time.
func TestDueRemedies(t *testing.T) {
	e := setup(t)
	ctx := t.Context()
	proceed := func(d *template.Definition) { d.Policy = template.PolicyProceed }
	var callers []nodeapi.Caller
	for range 4 {
		c, _, _ := e.enroll()
		e.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", c.NodeID)
		callers = append(callers, c)
		e.reports(c, "v1.3.0", map[string]string{"kernel": "6.8"})
	}
	e.reports(callers[3], "v1.5.0", nil) // newer: never downgraded
	due := func(most int) (ids map[string]string) {
		t.Helper()
		ins, err := e.Templates.DueRemedies(ctx, most)
		require.NoError(t, err)
		ids = map[string]string{}
		for _, in := range ins {
			require.Equal(t, lifecycle.ActionUpgradeAgent, in.Action)
			ids[in.NodeID] = in.OperationID
		}
		return ids
	}
	e.declare("dev", map[string]string{"agent": "v1.4.0"})
	e.scan()
	require.Empty(t, due(5), "the policy notify starts nothing")
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	require.Empty(t, due(5), "not before the drift from this version is recorded")
	e.scan()
	e.exec("INSERT INTO restore_modes (actor, reason, ends_at) VALUES ('a', 'r', now() + interval '1 hour')")
	require.Empty(t, due(5), "nothing in a restore mode")
	e.exec("UPDATE restore_modes SET ended_at = now()")
	first := due(2)
	require.Len(t, first, 2)
	require.Equal(t, first, due(2), "starts that are not known are repeated with the same IDs")
	ins, err := e.Templates.DueRemedies(ctx, 2)
	require.NoError(t, err)
	require.Equal(t, lifecycle.Options{AgentVersion: "v1.4.0", Release: "release-of-v1.4.0"}, ins[0].Options)
	require.Equal(t, "system drift differs from template dev version 2", strings.Join([]string{ins[0].Actor, ins[0].Via, ins[0].Reason}, " "))
	started := slices.Sorted(maps.Keys(first))
	claim := func(nodeID string) activities.Claim {
		r := request(nodeID, lifecycle.ActionUpgradeAgent)
		r.OperationID = first[nodeID]
		c, err := e.Claim(ctx, r)
		require.NoError(t, err)
		return c
	}
	claimed := claim(started[0])
	require.Equal(t, []string{started[1]}, slices.Sorted(maps.Keys(due(2))), "an open operation is not started again, and holds its place")
	require.NoError(t, e.Templates.RefuseRemedy(ctx, started[1], first[started[1]], "no such state\nx"))
	require.Equal(t, "no such state x", e.drift(started[1]).RemedyRefused)
	next := due(2)
	require.Len(t, next, 1, "a refused one gives its place to the third node")
	require.NotContains(t, next, started[1])
	require.NotContains(t, next, callers[3].NodeID)
	require.Equal(t, first[started[0]], e.drift(started[0]).Remedy)
	e.exec("UPDATE node_drifts SET remedy_at = remedy_at - interval '61 minutes'")
	again := due(3)
	require.NotEmpty(t, again[started[1]], "a refused start is repeated after an hour")
	require.NotEqual(t, first[started[1]], again[started[1]], "as another operation")
	require.Empty(t, e.drift(started[1]).RemedyRefused)

	e.exec("UPDATE operations SET ended_at = now(), status = 'failed' WHERE operation_id = $1", claimed.Fence.OperationID)
	require.NotContains(t, due(5), started[0], "an upgrade that failed is not tried again")
	e.declare("dev", map[string]string{"agent": "v1.4.1"}, proceed)
	e.scan()
	require.Contains(t, due(5), started[0], "another version is")
	require.NotEqual(t, first[started[0]], due(5)[started[0]])
}

// A live instance has what its machine reported, and not what an earlier machine did.
func TestArtifactsOfInstance(t *testing.T) {
	e := setup(t)
	caller, _, _ := e.enroll()
	e.reports(caller, "v1.0.0", map[string]string{"kernel": "6.8"})
	e.exec(`INSERT INTO instances (instance_id, node_id, provider, state, created_at) VALUES ($1, $2, 'manual', 'running', now() - interval '1 hour')
		ON CONFLICT DO NOTHING`, schema.NewID(), caller.NodeID)
	id := e.text("SELECT instance_id::text FROM instances WHERE node_id = $1 AND state <> 'terminated'", caller.NodeID)
	got := e.instance(id)
	require.Equal(t, map[string]string{"kernel": "6.8"}, got.Artifacts)
	require.NotNil(t, got.ArtifactsAt)
	e.exec("UPDATE node_artifacts SET reported_at = now() - interval '2 hours'")
	require.Nil(t, e.instance(id).Artifacts)
}
