package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	bulkLimit = "1000" // rows of one request of the admin API
	bulkNames = 8      // names that a plan lists of each group
)

// bulkPlan is what a run would do now.
type bulkPlan struct {
	verb bulkVerb
	// Total is the number of nodes or operations that match, and Chosen the number of those to
	// work on.
	Total, Chosen int
	Noun          string
	// Groups are those to work on, by effect; Left those that are left out, by reason.
	Groups, Left []bulkGroup
	// Digest names what would be done: another set of targets has another digest, and so has another
	// effect on one of them. The number of workloads that end is not in it, because it always changes.
	Digest string
	chosen []bulkTarget
}

// bulkGroup are targets for which the same happens.
type bulkGroup struct {
	Effect string
	Harm   lifecycle.Harm
	Count  int
	// Hosts are the first host names, and More the number of others.
	Hosts []string
	More  int
}

// bulkTarget is a node or an operation.
type bulkTarget struct {
	nodeID, host, operationID string
	// park is that of an operation: the decision is valid for no other one.
	park *lifecycle.Stuck
	// effect is what happens to it, and harm what that may damage.
	effect string
	harm   lifecycle.Harm
}

// planBulk reads what matches the filters and decides about each whether to work on it.
func planBulk(r *request, verb bulkVerb, of filter, harm bool) (*bulkPlan, error) {
	p := &bulkPlan{verb: verb, Noun: verb.noun()}
	read := func() error { return p.nodes(r, of) }
	if verb.Decision != "" {
		read = func() error { return p.parked(r, of, harm) }
	}
	if err := read(); err != nil {
		return nil, err
	}
	p.Chosen = len(p.chosen)
	ids := []string{verb.Name}
	for _, t := range p.chosen {
		id := strings.Join([]string{t.nodeID, t.operationID, t.effect, string(t.harm)}, " ")
		if t.park != nil {
			id += " " + t.park.Phase + " " + t.park.Since.UTC().String()
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	p.Digest = schema.SHA256Hex([]byte(strings.Join(ids, "\x00")))
	return p, nil
}

// add adds a target to the group of its effect. One that is left out has no target.
func (p *bulkPlan) add(t bulkTarget, left bool, effect string, harm lifecycle.Harm) {
	groups := &p.Groups
	if left {
		groups = &p.Left
	} else {
		p.chosen = append(p.chosen, t)
	}
	p.Total++
	i := slices.IndexFunc(*groups, func(g bulkGroup) bool { return g.Effect == effect && g.Harm == harm })
	if i < 0 {
		i = len(*groups)
		*groups = append(*groups, bulkGroup{Effect: effect, Harm: harm})
	}
	g := &(*groups)[i]
	if g.Count++; len(g.Hosts) < bulkNames {
		g.Hosts = append(g.Hosts, t.host)
	} else {
		g.More++
	}
}

// nodes plans an action on the nodes that match.
func (p *bulkPlan) nodes(r *request, of filter) error {
	providers, err := fetchShared[machine.Providers](r, "/providers", nil)
	if err != nil {
		return err
	}
	q := of.values()
	q.Set("limit", bulkLimit)
	q.Set("fields", "id,host,state,state_since,cordoned,gpus_total,onboarding_mode,identity_lock,instance,operation,workloads,conditions")
	for {
		list, err := fetch[wire.NodeList](r, "/nodes", q)
		if err != nil {
			return err
		}
		for _, n := range list.Nodes {
			p.addNode(n, providerOf(providers, n))
		}
		if list.NextPageToken == "" {
			return nil
		}
		q.Set("page_token", list.NextPageToken)
	}
}

// addNode adds a node with what the action does to it, or why it would be refused, as the preview of one
// action says. The claim of the operation decides again.
func (p *bulkPlan) addNode(n wire.NodeView, provider machine.Info) {
	t := bulkTarget{nodeID: n.ID, host: n.Host}
	plan := preview.Of(n, provider, p.verb.Action, p.verb.Options)
	if plan.Refused {
		p.add(t, true, refusalOf(n, plan.Blockers[0]), lifecycle.HarmNone)
		return
	}
	stops, fault := "", ""
	t.harm = lifecycle.HarmNone
	if len(plan.Workloads) > 0 {
		stops, t.harm = ", stops "+text.Count(len(plan.Workloads), "workload"), lifecycle.HarmWork
	}
	if preview.ReleaseWarning(n, p.verb.Action) != "" {
		fault = ", still has a fault"
	}
	state := fmt.Sprintf("%s, %s", p.verb.Name, n.State)
	t.effect = state + fault
	p.add(t, false, state+stops+fault, t.harm)
}

// refusalOf returns why a node is left out, without what differs between nodes, so that equal reasons are
// one group.
func refusalOf(n wire.NodeView, b preview.Blocker) string {
	switch b.Code {
	case schema.KindOperationInProgress:
		return string(n.Operation.Action) + " is in progress"
	case schema.KindNodeInUse:
		return "has a workload that a drain cannot stop"
	}
	return strings.ReplaceAll(b.Message, n.Host, "NODE")
}

// parked plans a decision about the parked operations that match. As in the CLI, it leaves out
// those that do not have the decision among their options and, without harm, those where it may
// kill workloads or cannot be undone.
func (p *bulkPlan) parked(r *request, of filter, harm bool) error {
	q := of.values()
	if park := q.Get("park"); park != "" {
		q.Del("park")
		q.Set("reason", park)
	}
	q.Set("limit", bulkLimit)
	q.Set("status", string(lifecycle.OperationParked))
	for {
		list, err := fetch[wire.OperationList](r, "/operations", q)
		if err != nil {
			return err
		}
		for _, op := range list.Operations {
			if op.Stuck != nil {
				p.addParked(op, harm)
			}
		}
		if list.NextPageToken == "" {
			return nil
		}
		q.Set("page_token", list.NextPageToken)
	}
}

func (p *bulkPlan) addParked(op wire.OperationSummary, harm bool) {
	t := bulkTarget{nodeID: op.NodeID, host: op.Host, operationID: op.OperationID, park: op.Stuck}
	i := slices.IndexFunc(op.Stuck.Options, func(o lifecycle.Option) bool { return o.Decision == p.verb.Decision })
	if i < 0 {
		p.add(t, true, "the decision is not among the options there", lifecycle.HarmNone)
		return
	}
	o := op.Stuck.Options[i]
	t.effect, t.harm = fmt.Sprintf("%s, phase %s (%s): %s", op.Action, op.Stuck.Phase, op.Stuck.Reason, o.Does), o.Harm
	p.add(t, o.Harm != lifecycle.HarmNone && !harm, t.effect, o.Harm)
}

// request returns the path and the body of the request about a target.
func (t bulkTarget) request(verb bulkVerb, reason string) (string, any) {
	if verb.Decision != "" {
		return "/operations/" + url.PathEscape(t.operationID) + "/" + string(verb.Decision),
			wire.ResolveOperation{Reason: reason, Phase: t.park.Phase, StuckSince: &t.park.Since}
	}
	return "/nodes/" + url.PathEscape(t.nodeID) + "/" + string(verb.Action), wire.LifecycleRequest{Reason: reason, Options: verb.Options}
}
