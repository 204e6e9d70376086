package console

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func nodeRoutes() []Route {
	all := []Route{shared("/nodes", nodeList), shared("/nodes/{node}", nodePage)}
	for _, p := range lifecycle.Operations() {
		if commandOnly(p.Action) {
			continue
		}
		path := "/nodes/{node}/" + string(p.Action)
		all = append(all, get(path, func(r *request) (view, error) { return actionForm(r, p.Action) }),
			post(path, p.Role(), func(r *request) (view, error) { return act(r, p.Action) }))
	}
	return all
}

// commandOnly reports whether only the command line starts an action: its result is a secret, or it
// needs files.
func commandOnly(a lifecycle.Action) bool {
	return slices.Contains([]lifecycle.Action{lifecycle.ActionEnroll, lifecycle.ActionReissueEnrollment, lifecycle.ActionProvision}, a)
}

// nodeListData is the data of the template nodes.
type nodeListData struct {
	wire.NodeList

	Filter filter
	// States are the values of the filter state.
	States []lifecycle.NodeState
	Next   string
	Silent func(wire.NodeView) bool
}

// nodeList lists nodes by host name. Its URL is the saved view.
func nodeList(r *request) (view, error) {
	f := filterOf(r.URL.Query().Get, "host", "state", "sku", "region", "provider", "selector", "removed")
	list, err := fetchShared[wire.NodeList](r, "/nodes", f.query(r))
	if err != nil {
		return view{}, err
	}
	silent := func(n wire.NodeView) bool {
		return n.LastHeartbeatAt != nil && r.Now.Sub(*n.LastHeartbeatAt) > lifecycle.SilentAfter
	}
	return view{Template: "nodes", Title: "Nodes", Nav: "Nodes", Watch: watchAll,
		Data: nodeListData{list, f, lifecycle.NodeStates(), f.next(r, list.NextPageToken), silent}}, nil
}

// nodeData is the data of the template node. Its parts are read apart.
type nodeData struct {
	wire.NodeView

	Actions []action
	Faults  []health.Condition

	Operations      []wire.OperationSummary
	OperationsError string
	Tasks           []wire.TaskView
	TasksError      string
	Events          []audit.Row
	EventsError     string
	Signals         []health.Signal
	SignalsError    string
	Instances       []instance.View
	InstancesError  string
}

// action is something that can be started on the node.
type action struct {
	Action  string
	Does    string
	Link    string
	Command string
	Needs   trust.Role
	Final   bool
}

// nodeRows is the number of rows of each part of the page of a node.
const nodeRows = "25"

// nodePage shows a node: what it is, what can be done, and its record.
func nodePage(r *request) (view, error) {
	n, err := fetchRecent[wire.NodeView](r, nodeAddress(r), nil)
	if err != nil {
		return view{}, err
	}
	d := nodeData{NodeView: n, Actions: actionsOf(r, n), Faults: preview.Faults(n)}
	q := func(more ...string) url.Values {
		v := url.Values{"node": {n.ID}, "limit": {nodeRows}}
		for i := 0; i+1 < len(more); i += 2 {
			v.Set(more[i], more[i+1])
		}
		return v
	}
	var parts parts
	parts.Go(func() {
		list, err := fetchRecent[wire.OperationList](r, "/operations", q())
		d.Operations, d.OperationsError = list.Operations, problem(err)
	})
	parts.Go(func() {
		list, err := fetchRecent[wire.TaskList](r, "/tasks", q("all", "true"))
		d.Tasks, d.TasksError = list.Tasks, problem(err)
	})
	parts.Go(func() {
		list, err := fetchRecent[wire.AuditPage](r, "/audit", q())
		d.Events, d.EventsError = list.Events, problem(err)
	})
	parts.Go(func() {
		list, err := fetchRecent[signal.List](r, "/nodes/"+n.ID+"/signals", url.Values{"limit": {nodeRows}})
		d.Signals, d.SignalsError = list.Signals, problem(err)
	})
	parts.Go(func() {
		list, err := fetchRecent[instance.List](r, "/instances", q())
		d.Instances, d.InstancesError = list.Instances, problem(err)
	})
	parts.Wait()
	return view{Template: "node", Title: n.Host, Nav: "Nodes", Watch: n.ID, Data: d}, nil
}

func readNode(r *request) (wire.NodeView, error) {
	return fetch[wire.NodeView](r, nodeAddress(r), nil)
}

// nodeAddress is the path in the admin API of the node that a request names.
func nodeAddress(r *request) string { return "/nodes/" + url.PathEscape(r.PathValue("node")) }

// actionsOf returns what can start in the state of a node, and the changes that need no operation.
func actionsOf(r *request, n wire.NodeView) (out []action) {
	for _, a := range lifecycle.ActionsIn(n.StartState()) {
		p, _ := lifecycle.PlanOf(a, lifecycle.Options{})
		row := action{Action: string(a), Does: p.Does, Command: fmt.Sprintf("gpuaas node %s %s", a, n.Host), Final: p.Final()}
		if !commandOnly(a) {
			row.Link = nodeLink(n.ID, string(a))
		}
		if need := p.Role(); !r.May(need) {
			row.Needs = need
		}
		out = append(out, row)
	}
	for _, c := range nodeChanges() {
		if c.Offered(n) {
			out = append(out, c.row(r, n))
		}
	}
	return out
}

// actionForm shows the plan of an action and asks for its reason.
func actionForm(r *request, a lifecycle.Action) (view, error) {
	n, err := readNode(r)
	if err != nil {
		return view{}, err
	}
	p, err := actionPage(r, n, a, lifecycle.Options{})
	if err != nil {
		return view{}, err
	}
	return p.form(), nil
}

// actionPage returns the form of an action with its plan.
func actionPage(r *request, n wire.NodeView, a lifecycle.Action, o lifecycle.Options) (confirmPage, error) {
	spec, _ := lifecycle.PlanOf(a, o)
	providers, err := fetchShared[machine.Providers](r, "/providers", nil)
	if err != nil {
		return confirmPage{}, err
	}
	plan := preview.Of(n, providerOf(providers, n), a, o)
	took, err := fetchShared[insight.DurationList](r, "/durations", url.Values{"action": {string(a)}, "provider": {cmp.Or(n.OnboardingMode, inventory.ProviderManual)}})
	if err == nil {
		plan.Took(took)
	}
	p := confirmPage{Title: fmt.Sprintf("%s %s", a, n.Host), Does: spec.Does, Harm: harmOf(a), Command: fmt.Sprintf("gpuaas node %s %s --reason %s", a, n.Host, lifecycle.ReasonPlaceholder),
		Plan: &plan, Fields: fieldsOf(a), Key: newKey(), ReasonRequired: true, Button: string(a), Back: Prefix + "/nodes/" + n.ID}
	if p.Harm != lifecycle.HarmNone {
		p.Typed = n.Host
	}
	if need := spec.Role(); !r.May(need) {
		p.MayNot = "it needs the role " + string(need)
	}
	return p, nil
}

// providerOf returns the provider of a node.
func providerOf(all machine.Providers, n wire.NodeView) machine.Info {
	for _, p := range all.Providers {
		if p.Name == n.OnboardingMode {
			return p.Info
		}
	}
	return machine.Info{Name: n.OnboardingMode}
}

// harmOf returns the worst that an action does with any of the options that its form has.
func harmOf(a lifecycle.Action) lifecycle.Harm {
	p, _ := lifecycle.PlanOf(a, lifecycle.Options{Drain: true})
	return p.Harm()
}

// fieldsOf returns the options of an action that the form has.
func fieldsOf(a lifecycle.Action) []field {
	minutes := field{Name: "minutes", Label: "Minutes for the workloads to stop", Type: "number",
		Value: strconv.Itoa(int(lifecycle.DefaultDrainTimeout / time.Minute)), Hint: "After that, the operation parks."}
	switch a {
	case lifecycle.ActionDrain:
		return []field{minutes, {Name: "cordon_only", Label: "Only cordon the node; its workloads continue", Type: "checkbox"}}
	case lifecycle.ActionRetire:
		return []field{{Name: "drain", Label: "Drain the node first", Type: "checkbox"}, minutes}
	case lifecycle.ActionUpgradeAgent:
		return []field{{Name: "version", Label: "Version of the agent", Type: "text", Required: true}}
	}
	return nil
}

// optionsOfForm reads the options of an action from its form.
func optionsOfForm(r *request, a lifecycle.Action) (o lifecycle.Options, err error) {
	o.CordonOnly, o.Drain, o.AgentVersion = r.PostFormValue("cordon_only") != "", r.PostFormValue("drain") != "", r.PostFormValue("version")
	if minutes := r.PostFormValue("minutes"); minutes != "" && (a == lifecycle.ActionDrain || o.Drain) {
		n, err := strconv.Atoi(minutes)
		if err != nil || n < 1 || n > int(wire.MaxDrainDeadline/time.Minute) {
			return o, schema.NewError(schema.KindInvalidRequest, "the minutes must be 1 to %d", int(wire.MaxDrainDeadline/time.Minute)).WithReason("bad_minutes")
		}
		o.DrainTimeoutSeconds = int64(n) * 60
	}
	return o, nil
}

// act starts an action, and shows its operation.
func act(r *request, a lifecycle.Action) (view, error) {
	n, err := readNode(r)
	if err != nil {
		return view{}, err
	}
	o, invalid := optionsOfForm(r, a)
	p, err := actionPage(r, n, a, o)
	if err != nil {
		return view{}, err
	}
	if invalid != nil {
		return p.refused(r, "Nothing was done: "+problem(invalid)+"."), nil
	}
	if v, ok := p.answered(r); !ok {
		return v, nil
	}
	started, err := submit[wire.LifecycleResponse](r, "/nodes/"+n.ID+"/"+string(a), wire.LifecycleRequest{Reason: r.PostFormValue("reason"), Options: o}, r.PostFormValue("key"))
	return view{Location: Prefix + "/operations/" + started.Operation.OperationID}, err
}
