package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func proceed(d *template.Definition) { d.Policy = template.PolicyProceed }

// older enrolls an active node whose agent is older than v1.4.0.
func (e *env) older() nodeapi.Caller {
	e.t.Helper()
	c, _, _ := e.enroll()
	e.exec("UPDATE nodes SET state = 'active' WHERE node_id = $1", c.NodeID)
	e.reports(c, "v1.3.0", map[string]string{"kernel": "6.8"})
	return c
}

// due scans and returns the operations to start by node.
func (e *env) due() map[string]string {
	e.t.Helper()
	e.scan()
	ins, err := e.Templates.DueRemedies(e.t.Context(), 5)
	require.NoError(e.t, err)
	ids := map[string]string{}
	for _, in := range ins {
		ids[in.NodeID] = in.OperationID
	}
	return ids
}

// upgraded runs an operation to its end.
func (e *env) upgraded(nodeID, operationID string, end lifecycle.OperationState) {
	e.t.Helper()
	r := request(nodeID, lifecycle.ActionUpgradeAgent)
	r.OperationID = operationID
	_, err := e.Claim(e.t.Context(), r)
	require.NoError(e.t, err)
	e.exec("UPDATE operations SET ended_at = now(), status = $2 WHERE operation_id = $1", operationID, string(end))
	e.exec("UPDATE nodes SET operation_id = NULL, state = 'active' WHERE node_id = $1", nodeID)
}

// The policy upgrades a node with the release of its architecture, and does not upgrade one without such a release.
func TestRemedyOfAnArchitecture(t *testing.T) {
	e := setup(t)
	set := func(agent string, releases trust.SignedReleases) {
		t.Helper()
		_, err := e.Templates.SetTemplate(t.Context(), "dev", template.Change{Definition: template.Definition{SKUs: []string{"cpu-dev"},
			Artifacts: map[string]string{"agent": agent}, Policy: template.PolicyProceed}}, releases, operator)
		require.NoError(t, err)
		e.scan()
	}
	nodes := map[string]string{}
	for _, arch := range []string{"arm64", "amd64", ""} {
		c := e.older()
		e.exec("UPDATE nodes SET facts = jsonb_build_object('arch', $2::text) WHERE node_id = $1", c.NodeID, arch)
		nodes[c.NodeID] = arch
	}
	due := func() map[string]string {
		ins, err := e.Templates.DueRemedies(t.Context(), 10)
		require.NoError(t, err)
		releases := map[string]string{}
		for _, in := range ins {
			releases[nodes[in.NodeID]] = in.Options.Release
		}
		return releases
	}
	set("v1.4.0", trust.SignedReleases{AMD64: "a", ARM64: "b"})
	require.Equal(t, map[string]string{"arm64": "b", "amd64": "a", "": "a"}, due())
	set("v1.4.1", trust.SignedReleases{AMD64: "a"})
	require.Equal(t, map[string]string{"amd64": "a", "": "a"}, due())
	set("v1.4.2", trust.SignedReleases{ARM64: "b"})
	require.Equal(t, map[string]string{"arm64": "b"}, due())
}

// A node whose agent is made older again after each upgrade is upgraded once, although its drift ended meanwhile.
func TestRemedyIsNotRepeated(t *testing.T) {
	e := setup(t)
	c := e.older()
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	first := e.due()[c.NodeID]
	require.NotEmpty(t, first)
	e.upgraded(c.NodeID, first, lifecycle.OperationCompleted)
	for range 3 {
		e.reports(c, "v1.4.0", nil)
		require.Empty(t, e.due())
		require.Equal(t, template.StatusInSync, e.drift(c.NodeID).Status)
		require.Nil(t, e.drift(c.NodeID).Since)
		e.reports(c, "v1.3.0", nil)
		require.Empty(t, e.due(), "the upgrade did not last")
	}
	r := e.drift(c.NodeID)
	require.True(t, r.Drifted)
	require.Equal(t, first, r.Remedy)
	require.Contains(t, r.Next, "operation "+first+" (completed) is not repeated")
	fleet, err := e.Templates.FleetDrift(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, fleet.Nodes)

	e.exec("UPDATE nodes SET incarnation = incarnation + 1 WHERE node_id = $1", c.NodeID)
	c.Incarnation++
	e.reports(c, "v1.3.0", map[string]string{})
	require.Empty(t, e.drift(c.NodeID).Next)
	second := e.due()[c.NodeID]
	require.NotEmpty(t, second, "a machine that was enrolled again is upgraded again")
	require.NotEqual(t, first, second)
}

// A drift that ended is counted nowhere, and its next one begins when it is found.
func TestEndedDriftOfRemedy(t *testing.T) {
	e := setup(t)
	c := e.older()
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	e.upgraded(c.NodeID, e.due()[c.NodeID], lifecycle.OperationCompleted)
	e.exec("UPDATE node_drifts SET since = now() - interval '1 day'")
	e.reports(c, "v1.4.0", nil)
	require.Equal(t, 1, e.scan().Changed)
	require.Zero(t, e.scan().Changed)
	fleet, err := e.Templates.FleetDrift(t.Context())
	require.NoError(t, err)
	require.Equal(t, template.Fleet{Counts: []template.Count{}}, fleet)
	e.reports(c, "v1.3.0", nil)
	require.Equal(t, 1, e.scan().Changed)
	require.WithinDuration(t, time.Now(), *e.drift(c.NodeID).Since, time.Hour)
	require.Equal(t, []string{"differs from template dev version 1: update agent", "matches template dev version 1 again",
		"differs from template dev version 1: update agent"}, e.driftSignals(c.NodeID))
}

// Remedies that never claimed their node give their places back: a declared version that changes while
// nothing can be started does not stop all further upgrades.
func TestRemedyWithoutOperation(t *testing.T) {
	e := setup(t)
	var nodes []string
	for range 6 {
		nodes = append(nodes, e.older().NodeID)
	}
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	first := e.due()
	require.Len(t, first, 5)
	e.declare("dev", map[string]string{"agent": "v1.4.1"}, proceed)
	require.Empty(t, e.due(), "the operations may still claim their nodes")
	e.exec("UPDATE node_drifts SET remedy_at = now() - interval '36 minutes' WHERE remedy IS NOT NULL")
	second := e.due()
	require.Len(t, second, 5)
	for _, n := range nodes {
		require.False(t, second[n] != "" && second[n] == first[n], "another operation")
	}
	e.exec("UPDATE node_drifts SET remedy_at = now() - interval '26 minutes' WHERE remedy IS NOT NULL")
	require.Empty(t, e.due(), "a start is tried for 25 minutes")
	e.exec("UPDATE node_drifts SET remedy_at = now() - interval '61 minutes' WHERE remedy IS NOT NULL")
	require.Len(t, e.due(), 5)
}

// What is chosen is not started once the template is deleted.
func TestRemedyOfDeletedTemplate(t *testing.T) {
	e := setup(t)
	c := e.older()
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	require.NotEmpty(t, e.due()[c.NodeID])
	_, err := e.Templates.DeleteTemplate(t.Context(), "dev", "", operator)
	require.NoError(t, err)
	ins, err := e.Templates.DueRemedies(t.Context(), 5)
	require.NoError(t, err)
	require.Empty(t, ins, "before the next scan")
	require.Empty(t, e.due())
}

// The policy leaves alone nodes that an operator, health recovery or a maintenance window holds.
func TestRemedyOfHeldNode(t *testing.T) {
	e := setup(t)
	c := e.older()
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	for what, hold := range map[string][2]string{
		"a cordon":         {"UPDATE nodes SET cordoned = true WHERE node_id = $1", "UPDATE nodes SET cordoned = false WHERE node_id = $1"},
		"a quarantine":     {"UPDATE nodes SET state = 'quarantined' WHERE node_id = $1", "UPDATE nodes SET state = 'active' WHERE node_id = $1"},
		"a locked node":    {"UPDATE nodes SET identity_locked_at = now(), identity_lock_reason = 'x' WHERE node_id = $1", "UPDATE nodes SET identity_locked_at = NULL, identity_lock_reason = '' WHERE node_id = $1"},
		"a silent node":    {"UPDATE nodes SET last_heartbeat_at = now() - interval '3 minutes' WHERE node_id = $1", "UPDATE nodes SET last_heartbeat_at = now() WHERE node_id = $1"},
		"an agent's fault": {"UPDATE nodes SET agent_fault = 'x' WHERE node_id = $1", "UPDATE nodes SET agent_fault = '' WHERE node_id = $1"},
		"a repair": {`INSERT INTO budget_reservations (operation_id, purpose, node_id, sku, rack, region, input) VALUES (gen_random_uuid(), 'repair', $1, '', '', '', '{}')`,
			"DELETE FROM budget_reservations WHERE node_id = $1"},
	} {
		e.exec(hold[0], c.NodeID)
		require.Empty(t, e.due(), what)
		e.exec(hold[1], c.NodeID)
	}
	window := recovery.Window{Match: recovery.Match{Hosts: []string{e.drift(c.NodeID).Host}}, Start: time.Now().Add(-time.Hour), End: time.Now().Add(time.Hour), Reason: "power"}
	e.setPolicy(func(p *recovery.Policy) { p.Windows = []recovery.Window{window} })
	require.Empty(t, e.due(), "a maintenance window")
	e.setPolicy(func(p *recovery.Policy) { p.Windows = nil })
	require.NotEmpty(t, e.due())
}

// A node that reports another digest with each heartbeat causes one signal, and one that was removed is
// not compared.
func TestChangingArtifacts(t *testing.T) {
	e := setup(t)
	c, _, _ := e.enroll()
	e.declare("dev", map[string]string{"kernel": "6.8"})
	for _, kernel := range []string{"a", "b", "c"} {
		e.reports(c, "v1.0.0", map[string]string{"kernel": kernel})
		require.Equal(t, 1, e.scan().Changed)
		require.EqualValues(t, 1, e.number("SELECT count(*) FROM node_drifts WHERE drift -> 'update' -> 0 ->> 'reported' = $1", kernel))
	}
	require.Len(t, e.driftSignals(c.NodeID), 1)
	e.exec("UPDATE nodes SET state = 'removed' WHERE node_id = $1", c.NodeID)
	require.Equal(t, 1, e.scan().Changed)
	require.Zero(t, e.scan().Nodes)
	r := e.drift(c.NodeID)
	require.Equal(t, template.StatusNoTemplate, r.Status)
	require.Contains(t, r.Next, "removed")
	require.Len(t, e.driftSignals(c.NodeID), 1)
}

// A version that five nodes received and do not run is given to no further node, whatever became of the operations.
func TestVersionThatDoesNotCure(t *testing.T) {
	e := setup(t)
	nodes := map[string]nodeapi.Caller{}
	for range 7 {
		c := e.older()
		nodes[c.NodeID] = c
	}
	e.declare("dev", map[string]string{"agent": "v1.4.0"}, proceed)
	first := e.due()
	require.Len(t, first, 5)
	ends := []lifecycle.OperationState{lifecycle.OperationCompleted, lifecycle.OperationFailed, lifecycle.OperationCanceled}
	for nodeID, id := range first {
		e.upgraded(nodeID, id, ends[len(ends)-1])
		ends = append(ends[len(ends)-1:], ends[:len(ends)-1]...)
	}
	require.Empty(t, e.due())
	for nodeID := range nodes {
		if first[nodeID] == "" {
			require.Contains(t, e.drift(nodeID).Next, "5 nodes received v1.4.0 and do not run it")
		}
	}
	for nodeID := range first {
		e.reports(nodes[nodeID], "v1.4.0", nil)
		break
	}
	require.Len(t, e.due(), 1, "one node runs it")
	e.declare("dev", map[string]string{"agent": "v1.4.1"}, proceed)
	e.exec("UPDATE node_drifts SET remedy_refused = 'x' WHERE remedy NOT IN (SELECT operation_id FROM operations)")
	require.Len(t, e.due(), 5, "another version is given")
}
