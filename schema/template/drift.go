package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/version"
)

// Newest is the declared version of inventory.ArtifactVerifierSet.
const Newest = "newest"

// Status is the result of the comparison of a node with its template.
type Status string

// The statuses.
const (
	StatusInSync     Status = "in_sync"
	StatusDrifted    Status = "drifted"
	StatusUnknown    Status = "unknown"     // the node has not reported everything, and what it has does not differ
	StatusNoTemplate Status = "no_template" // nothing is declared for the node
)

// Difference is a declared or managed artifact that a node does not have as declared.
type Difference struct {
	Name     string `json:"name"`
	Declared string `json:"declared,omitempty"`
	// Reported is untrusted: the node reported it.
	Reported string `json:"reported,omitempty"`
	// Next is what corrects the difference.
	Next string `json:"next,omitempty"`
}

// Drift is how a node differs from its template.
type Drift struct {
	// Attach are declared artifacts that the node does not report, Detach managed ones that it reports
	// and that are not declared, and Update those that it has in another version.
	Attach []Difference `json:"attach,omitempty"`
	Detach []Difference `json:"detach,omitempty"`
	Update []Difference `json:"update,omitempty"`
}

// Report is the response to GET /api/v1/admin/nodes/{node}/drift.
type Report struct {
	NodeID string `json:"node_id"`
	Host   string `json:"host"`
	// Template and Version are those of the node's template, empty without one.
	Template string `json:"template,omitempty"`
	Version  int64  `json:"version,omitempty"`
	Policy   Policy `json:"policy,omitempty"`
	Status   Status `json:"status"`
	// Drifted is true if the node differs from its template.
	Drifted bool `json:"drift"`
	Drift
	// Unknown are the declared artifacts that the node has not reported on, because its agent is older
	// than these reports or has not sent one since it was enrolled.
	Unknown []string `json:"unknown,omitempty"`
	// Since is when the scan recorded the drift, nil before it did.
	Since *time.Time `json:"since,omitempty"`
	// Artifacts are all reported versions and digests by name. They are untrusted.
	Artifacts map[string]string `json:"artifacts,omitempty"`
	// ReportedAt is when the last report with them arrived, nil without one.
	ReportedAt *time.Time `json:"reported_at,omitempty"`
	// Upgrade is the version of the agent to which an upgrade corrects a part of the drift, empty if
	// none does.
	Upgrade string `json:"upgrade,omitempty"`
	// Remedy is the last operation that a policy started for the node, also for an earlier drift, and
	// RemedyRefused why it was refused.
	Remedy        string `json:"remedy,omitempty"`
	RemedyRefused string `json:"remedy_refused,omitempty"`
	// Next is the next step, empty if there is none.
	Next string `json:"next,omitempty"`
}

// Count is how many nodes differ from their template in one way.
type Count struct {
	Template string `json:"template"`
	Version  int64  `json:"version"`
	// Change is attach, detach or update.
	Change   string `json:"change"`
	Name     string `json:"name"`
	Declared string `json:"declared,omitempty"`
	// Reported is untrusted: the nodes reported it.
	Reported string `json:"reported,omitempty"`
	Nodes    int64  `json:"nodes"`
}

// Fleet is the response to GET /api/v1/admin/drift: the drift that the last scan recorded.
type Fleet struct {
	// Nodes is the number of nodes that differ from their template.
	Nodes int64 `json:"nodes"`
	// Counts are the differences, those of most nodes first, at most MaxCounts.
	Counts []Count `json:"counts"`
}

// MaxCounts is the number of differences in a Fleet.
const MaxCounts = 500

// Node is what a node reports.
type Node struct {
	Host string
	// Artifacts are the versions and digests by name, nil if the node has not reported any since
	// it was enrolled.
	Artifacts map[string]string
	// AgentVersion is that of the last heartbeat, empty before the first one.
	AgentVersion string
	// VerifierSet is the version of the last poll, 0 before the first one. NewestSet is the newest one
	// that the node had the time to receive.
	VerifierSet, NewestSet int64
}

// Compare returns how a node differs from a template, and the names of declared artifacts of which
// it is not known whether the node has them. Lists are in order of name.
func Compare(t Definition, n Node) (d Drift, unknown []string) {
	reported := n.versions()
	for _, name := range slices.Sorted(maps.Keys(t.Artifacts)) {
		declared, is := t.Artifacts[name], reported[name]
		if name == inventory.ArtifactVerifierSet {
			declared = strconv.FormatInt(n.NewestSet, 10)
		}
		differs := Difference{Name: name, Declared: declared, Reported: is}
		switch {
		case is == declared || name == inventory.ArtifactVerifierSet && n.VerifierSet > n.NewestSet:
		case is != "":
			differs.Next = next(n.Host, differs)
			d.Update = append(d.Update, differs)
		case n.Artifacts == nil || name == inventory.ArtifactAgent || name == inventory.ArtifactVerifierSet:
			unknown = append(unknown, name)
		default:
			differs.Next = next(n.Host, differs)
			d.Attach = append(d.Attach, differs)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(reported)) {
		if _, declared := t.Artifacts[name]; !declared && t.manages(name) {
			differs := Difference{Name: name, Reported: reported[name]}
			differs.Next = next(n.Host, differs)
			d.Detach = append(d.Detach, differs)
		}
	}
	return d, unknown
}

// versions are the versions of a node by name. Those of the agent and of the verifier set come
// from its heartbeats and polls.
func (n Node) versions() map[string]string {
	all := maps.Clone(n.Artifacts)
	if all == nil {
		all = map[string]string{}
	}
	delete(all, inventory.ArtifactAgent)
	delete(all, inventory.ArtifactVerifierSet)
	if n.AgentVersion != "" {
		all[inventory.ArtifactAgent] = n.AgentVersion
	}
	if n.VerifierSet > 0 {
		all[inventory.ArtifactVerifierSet] = strconv.FormatInt(n.VerifierSet, 10)
	}
	return all
}

// Any reports whether there is a difference.
func (d Drift) Any() bool { return len(d.Attach)+len(d.Detach)+len(d.Update) > 0 }

// String names the artifacts that differ, in one line without what the node reported.
func (d Drift) String() string {
	var parts []string
	for _, c := range []struct {
		change string
		list   []Difference
	}{{"attach", d.Attach}, {"detach", d.Detach}, {"update", d.Update}} {
		var names []string
		for _, x := range c.list {
			names = append(names, x.Name)
		}
		if len(names) > 0 {
			parts = append(parts, c.change+" "+strings.Join(names, " "))
		}
	}
	return strings.Join(parts, "; ")
}

// Upgrade returns the version to which an upgrade of the agent corrects a part of the drift, empty if
// none does. An agent that is newer than declared stays: a downgrade is an operator's decision.
func (d Drift) Upgrade() string {
	for _, x := range d.Update {
		if x.Name == inventory.ArtifactAgent && version.Older(x.Reported, x.Declared) {
			return x.Declared
		}
	}
	return ""
}

// next is what corrects a difference.
func next(host string, x Difference) string {
	switch {
	case x.Declared == "":
		return fmt.Sprintf("remove %s from %s, or declare it in the template", x.Name, host)
	case x.Name == inventory.ArtifactAgent && version.Older(x.Reported, x.Declared):
		return "gpuaas node upgrade-agent " + host + " --version " + x.Declared
	case x.Name == inventory.ArtifactAgent:
		return "gpuaas node upgrade-agent " + host + " --version " + x.Declared + " --downgrade"
	case x.Name == inventory.ArtifactAgentBinary:
		return "if the version of the agent is as declared, its binary was changed: gpuaas node quarantine " + host
	case x.Name == inventory.ArtifactVerifierSet:
		return "the agent receives the set with its next poll; if it does not: gpuaas node show " + host
	}
	return fmt.Sprintf("gpuaas node drain %s, then install %s %s on it", host, x.Name, x.Declared)
}

// Describe completes a report with the comparison of a node with its template, nil if it has none.
func (r *Report) Describe(t *Template, n Node) {
	r.Artifacts = n.versions()
	if t == nil {
		r.Status = StatusNoTemplate
		r.Next = cmp.Or(r.Next, "gpuaas template list")
		return
	}
	r.Template, r.Version, r.Policy = t.Name, t.Version, t.Policy
	r.Drift, r.Unknown = Compare(t.Definition, n)
	r.Upgrade, r.Drifted = r.Drift.Upgrade(), r.Any()
	switch {
	case r.Drifted:
		r.Status = StatusDrifted
	case len(r.Unknown) > 0:
		r.Status, r.Next = StatusUnknown, "gpuaas node show "+r.Host+": its agent must be running, and of a version that reports artifacts"
	default:
		r.Status = StatusInSync
	}
}
