package recovery

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// findIncidents applies the rules for faults of many nodes: first that for racks, then that for
// reasons. A node of an incident is not repaired.
func (r *round) findIncidents() {
	r.rackIncidents()
	r.suspectIncidents()
	slices.SortFunc(r.incidents, func(a, b Incident) int {
		return cmp.Or(-cmp.Compare(len(a.Nodes), len(b.Nodes)), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Fault.Checker, b.Fault.Checker), cmp.Compare(a.Fault.Reason, b.Fault.Reason), cmp.Compare(a.Fault.Code, b.Fault.Code))
	})
}

// rackIncidents makes one incident of all racks that fail for one cause.
func (r *round) rackIncidents() {
	in := map[string][]patient{}
	for _, n := range r.nodes {
		if _, running := n.running(); n.Rack != "" && (evidentFree(r, n) || running && r.evident(n)) {
			in[n.Rack] = append(in[n.Rack], n)
		}
	}
	bad := map[Fault][]patient{}
	var causes []Fault
	for _, rack := range slices.Sorted(maps.Keys(in)) {
		nodes := in[rack]
		size := r.sizes[place{ScopeRack, rack}].Nodes
		if len(nodes) < max(MinCorrelated, r.policy.Rack.Nodes) || 100*len(nodes) < r.policy.Rack.Percent*size {
			continue
		}
		cause, _ := top(nodes, func(n patient) Fault { return n.fault.cause() })
		if bad[cause] == nil {
			causes = append(causes, cause)
		}
		bad[cause] = append(bad[cause], nodes...)
	}
	for _, cause := range causes {
		r.rackIncident(cause, bad[cause])
	}
}

func (r *round) rackIncident(cause Fault, nodes []patient) {
	racks := values(nodes, func(n patient) string { return n.Rack })
	total := 0
	for _, rack := range racks {
		total += r.sizes[place{ScopeRack, rack}].Nodes
	}
	in := Incident{Brake: BrakeRack, Scope: ScopeRack, Key: racks[0], Fault: oldest(cause, nodes), Nodes: hosts(nodes)}
	if len(racks) > 1 {
		in.Scope, in.Key = commonPlace(nodes)
	}
	in.Why = sentence("%d of %d nodes of %s have a fault, mostly %s, since %s: a shared switch or power feed is a more likely cause than the nodes, "+
		"so none of them is repaired; check the switch and the power, and the nodes return automatically; repair one node by hand: %s",
		len(nodes), total, named("rack", racks), cause.name(), stamp(in.Fault.Since), nodes[0].command(nil))
	r.incidents = append(r.incidents, in)
	for _, n := range r.nodes { // also those of the racks that are no evidence yet
		if n.faulty() && slices.Contains(racks, n.Rack) {
			r.frozen[n.NodeID] = freeze{BrakeRack, in.Why}
		}
	}
}

// commonPlace returns the region of the nodes, or the fleet if they are in several.
func commonPlace(nodes []patient) (Scope, string) {
	if regions := values(nodes, func(n patient) string { return n.Region }); len(regions) == 1 {
		return ScopeRegion, regions[0]
	}
	return ScopeFleet, ""
}

// suspectIncidents finds the reasons that spread too fast to be faults of nodes.
func (r *round) suspectIncidents() {
	having := map[Fault][]patient{}
	var causes []Fault
	for _, n := range r.nodes {
		if _, frozen := r.frozen[n.NodeID]; frozen || !r.unplanned(n) || r.policy.Suspect.trusted(n.fault) {
			continue
		}
		cause := n.fault.cause()
		if having[cause] == nil {
			causes = append(causes, cause)
		}
		having[cause] = append(having[cause], n)
	}
	for _, cause := range causes {
		if nodes := having[cause]; r.suspicious(cause, nodes) {
			r.suspectIncident(cause, nodes)
		}
	}
}

// suspicious reports whether the reason spread to the share of the fleet within the time of the rule,
// whatever the nodes are that have had it for longer. A reason that was suspect in the round before stays
// so while half as many nodes have it: a false fault may end on some of them and begin again. nodes are
// sorted by the fault's begin.
func (r *round) suspicious(cause Fault, nodes []patient) bool {
	able := r.able(place{ScopeFleet, ""}, cause)
	needed := max(MinCorrelated, (r.policy.Suspect.Percent*able+99)/100)
	if able <= 0 {
		return false
	}
	if len(nodes) >= max(MinCorrelated, (needed+1)/2) && wasSuspect(r.before, cause) {
		return true
	}
	for i := needed - 1; i < len(nodes); i++ {
		if nodes[i].fault.Since.Sub(nodes[i-needed+1].fault.Since) <= time.Duration(r.policy.Suspect.Within) {
			return true
		}
	}
	return false
}

func wasSuspect(before []Incident, cause Fault) bool {
	return slices.ContainsFunc(before, func(in Incident) bool { return in.Brake == BrakeSuspect && in.Fault.cause() == cause })
}

func (r *round) suspectIncident(cause Fault, nodes []patient) {
	in := Incident{Brake: BrakeSuspect, Fault: oldest(cause, nodes), Nodes: hosts(nodes)}
	in.Scope, in.Key = commonPlace(nodes)
	in.Why = sentence("%s is on %d of the %d nodes that can have it, the first since %s: the checker may be wrong, so none of them is repaired; "+
		"check one node; if the fault is real, add \"%s/%s\" to suspect.trusted in the policy, otherwise add %q to disabled_checkers",
		cause.name(), len(nodes), r.able(place{ScopeFleet, ""}, cause), stamp(in.Fault.Since), cause.Checker, cause.Reason, cause.Checker)
	r.incidents = append(r.incidents, in)
	for _, n := range nodes {
		r.frozen[n.NodeID] = freeze{BrakeSuspect, in.Why}
	}
}

// oldest returns the oldest fault of the cause.
func oldest(cause Fault, nodes []patient) Fault {
	f := cause
	for _, n := range nodes {
		if n.fault.cause() == cause && (f.Since.IsZero() || n.fault.Since.Before(f.Since)) {
			f.Since, f.Repair = n.fault.Since, n.fault.Repair
		}
	}
	return f
}
