package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
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
	// Digest names exactly what would be done: another set of targets has another digest.
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
}

// planBulk reads what matches the filters and decides about each whether to work on it.
func planBulk(r *Request, verb bulkVerb, of filter, harm bool) (*bulkPlan, error) {
	p := &bulkPlan{verb: verb, Noun: verb.noun()}
	err := p.nodes(r, of)
	if verb.Decision != "" {
		err = p.parked(r, of, harm)
	}
	if err != nil {
		return nil, err
	}
	p.Chosen = len(p.chosen)
	ids := []string{verb.Name}
	for _, t := range p.chosen {
		id := t.nodeID + t.operationID
		if t.park != nil {
			id += t.park.Phase + t.park.Since.UTC().String()
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
func (p *bulkPlan) nodes(r *Request, of filter) error {
	if p.verb.Decision != "" {
		return nil
	}
	q := of.values()
	q.Set("limit", bulkLimit)
	q.Set("fields", "id,host,state,state_since,cordoned,gpus_total,onboarding_mode,identity_lock,instance,operation,workloads")
	for {
		list, err := Get[wire.NodeList](r, "/nodes", q)
		if err != nil {
			return err
		}
		for _, n := range list.Nodes {
			effect, harm, err := effectOn(n, p.verb)
			if err != nil {
				effect = strings.ReplaceAll(schema.AsError(err).Message, n.Host, "NODE") // so that equal reasons are one group
			}
			p.add(bulkTarget{nodeID: n.ID, host: n.Host}, err != nil, effect, harm)
		}
		if list.NextPageToken == "" {
			return nil
		}
		q.Set("page_token", list.NextPageToken)
	}
}

// effectOn returns what an action does to a node, or why it would be refused. The claim of the
// operation decides again.
func effectOn(n wire.NodeView, verb bulkVerb) (string, lifecycle.Harm, error) {
	plan, _ := lifecycle.PlanOf(verb.Action, verb.Options)
	abandoned := n.Operation != nil && n.Operation.Status == lifecycle.OperationAbandoned
	if n.Operation != nil && !n.Operation.Status.Ended() && !abandoned && plan.ConflictsWith(n.Operation.Action) {
		return "", lifecycle.HarmNone, schema.NewError(schema.KindOperationInProgress, "%s is in progress", n.Operation.Action)
	}
	c := lifecycle.Candidate{Host: n.Host, State: n.StartState(), Workloads: n.Blockers(), Lock: n.IdentityLock,
		Provider: machine.Info{Name: n.OnboardingMode, Creates: n.OnboardingMode != inventory.ProviderManual}}
	if n.Instance != nil {
		c.Instance = n.Instance.State
	}
	if _, err := c.Admit(verb.Action, verb.Options); err != nil {
		return "", lifecycle.HarmNone, err
	}
	effect := fmt.Sprintf("%s, %s", verb.Name, n.State)
	if verb.Action != lifecycle.ActionDrain || verb.Options.CordonOnly || len(n.Workloads) == 0 {
		return effect, lifecycle.HarmNone, nil
	}
	return effect + ", stops " + text.Count(len(n.Workloads), "workload"), lifecycle.HarmWork, nil
}

// parked plans a decision about the parked operations that match. As in the CLI, it leaves out
// those that do not have the decision among their options and, without harm, those where it may
// kill workloads or cannot be undone.
func (p *bulkPlan) parked(r *Request, of filter, harm bool) error {
	q := of.values()
	if park := q.Get("park"); park != "" {
		q.Del("park")
		q.Set("reason", park)
	}
	q.Set("limit", bulkLimit)
	q.Set("status", string(lifecycle.OperationParked))
	for {
		list, err := Get[wire.OperationList](r, "/operations", q)
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
	effect := fmt.Sprintf("%s, phase %s (%s): %s", op.Action, op.Stuck.Phase, op.Stuck.Reason, o.Does)
	p.add(t, o.Harm != lifecycle.HarmNone && !harm, effect, o.Harm)
}

// request returns the path and the body of the request about a target.
func (t bulkTarget) request(verb bulkVerb, reason string) (string, any) {
	if verb.Decision != "" {
		return "/operations/" + url.PathEscape(t.operationID) + "/" + string(verb.Decision),
			wire.ResolveOperation{Reason: reason, Phase: t.park.Phase, StuckSince: &t.park.Since}
	}
	return "/nodes/" + url.PathEscape(t.nodeID) + "/" + string(verb.Action), wire.LifecycleRequest{Reason: reason, Options: verb.Options}
}
