package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of how many requests of a bulk run are sent at a time.
const (
	bulkParallel    = 8
	maxBulkParallel = 32
)

func bulkRoutes() []Route {
	return []Route{
		get("/bulk", showBulk),
		post("/bulk", trust.RoleOperator, startBulk),
		get("/bulk/{run}", showBulkRun),
		post("/bulk/{run}/stop", trust.RoleOperator, stopBulk),
	}
}

// bulkVerb is what a bulk run does: an action on nodes or a decision about parked operations.
type bulkVerb struct {
	Name, Does string
	// Action and Options are those of an action; Decision is that of a decision.
	Action   lifecycle.Action
	Options  lifecycle.Options
	Decision lifecycle.Decision
}

// bulkVerbs lists the actions that end with the node in a state from which another action leads
// back, and the decisions.
func bulkVerbs() []bulkVerb {
	all := []bulkVerb{
		{Name: "drain", Does: "cordon, then stop the workloads", Action: lifecycle.ActionDrain},
		{Name: "cordon", Does: "accept no new workloads", Action: lifecycle.ActionDrain, Options: lifecycle.Options{CordonOnly: true}},
		{Name: "uncordon", Does: "accept workloads again", Action: lifecycle.ActionUncordon},
		{Name: "quarantine", Does: "take the nodes out of service", Action: lifecycle.ActionQuarantine},
		{Name: "release", Does: "return quarantined nodes to service", Action: lifecycle.ActionRelease},
	}
	for _, d := range lifecycle.Decisions() {
		all = append(all, bulkVerb{Name: "decide " + string(d), Decision: d})
	}
	return all
}

// filters are the names of the verb's filters. That of the reason of a park is not "reason", which
// is why the operator starts the run.
func (v bulkVerb) filters() []string {
	if v.Decision != "" {
		return []string{"selector", "park", "action"}
	}
	return []string{"selector", "state", "sku", "region", "host"}
}

// noun is what the verb works on.
func (v bulkVerb) noun() string {
	if v.Decision != "" {
		return "parked operation"
	}
	return "node"
}

// bulkPage is the data of the template bulk.
type bulkPage struct {
	// Actions are the verbs on nodes, Decisions those on parked operations.
	Actions, Decisions []bulkVerb
	States             []lifecycle.NodeState
	Plans              []lifecycle.Plan

	Filter filter
	Do     string
	Harm   bool
	// Plan is nil until a verb is chosen.
	Plan *bulkPlan
	Key  string
	// Needs is the role that the subject lacks to start the plan, empty if it has it.
	Needs trust.Role
	// Parallel is how many requests are sent at a time by default, MaxParallel at most.
	Parallel, MaxParallel int
	// Changed is set if the plan is another one than the operator confirmed.
	Changed bool
	Runs    []bulkView
}

// showBulk shows the form and, once a verb is chosen, its plan. It changes nothing.
func showBulk(r *request) (view, error) {
	return bulkPlanPage(r, r.URL.Query().Get("do"), r.URL.Query().Get("harm") == "yes", false)
}

// bulkPlanPage is the page with the plan for the filters of the request.
func bulkPlanPage(r *request, do string, harm, changed bool) (view, error) {
	p := bulkPage{Do: do, Harm: harm, Changed: changed, States: lifecycle.NodeStates(), Plans: lifecycle.Operations(),
		Filter: filter{}, Parallel: bulkParallel, MaxParallel: maxBulkParallel, Runs: r.console.bulk.list()}
	for _, v := range bulkVerbs() {
		if v.Decision != "" {
			p.Decisions = append(p.Decisions, v)
		} else {
			p.Actions = append(p.Actions, v)
		}
	}
	page := view{Template: "bulk", Title: "Bulk actions", Nav: "Bulk"}
	if do != "" {
		verb, of, err := r.bulkChoice(do)
		if err != nil {
			return view{}, err
		}
		plan, err := planBulk(r, verb, of, harm)
		if err != nil {
			return view{}, err
		}
		p.Plan, p.Filter, p.Key, p.Needs = plan, of, schema.NewID(), lacks(r, verb.Decision)
	}
	if changed {
		page.Status = http.StatusConflict
	}
	page.Data = p
	return page, nil
}

// bulkChoice returns the verb and the filters of a request. Without a filter, it is an error: a
// bulk run on all nodes names a filter that matches all.
func (r *request) bulkChoice(do string) (bulkVerb, filter, error) {
	i := slices.IndexFunc(bulkVerbs(), func(v bulkVerb) bool { return v.Name == do })
	if i < 0 {
		return bulkVerb{}, nil, schema.NewError(schema.KindInvalidRequest, "unknown bulk action").WithReason("bad_do")
	}
	verb := bulkVerbs()[i]
	f := filterOf(r.FormValue, verb.filters()...)
	if len(f) == 0 {
		return verb, f, schema.NewError(schema.KindInvalidRequest, "a bulk action needs a filter: %s", text.Or(verb.filters())).
			WithReason("no_filter").WithNext("to select all nodes, filter by each state or region")
	}
	return verb, f, nil
}

// startBulk starts the run whose plan the operator confirmed. If the plan is another one now, it
// shows that one instead.
func startBulk(r *request) (view, error) {
	if run, ok := r.console.bulk.find(r.PostFormValue("key")); ok {
		return view{Location: Prefix + "/bulk/" + run.id}, nil // the form was sent twice
	}
	do, harm := r.PostFormValue("do"), r.PostFormValue("harm") == "yes"
	verb, of, err := r.bulkChoice(do)
	if err != nil {
		return view{}, err
	}
	if need := lacks(r, verb.Decision); need != "" {
		return view{}, schema.NewError(schema.KindForbidden, "this needs the role %s", need).WithReason("role")
	}
	reason := strings.TrimSpace(r.PostFormValue("reason"))
	if reason == "" || !text.IsLine(reason, wire.MaxReason) {
		return view{}, schema.NewError(schema.KindInvalidRequest, "the reason must be one line of 1 to %d characters", wire.MaxReason).WithReason("bad_reason")
	}
	plan, err := planBulk(r, verb, of, harm)
	if err != nil {
		return view{}, err
	}
	if plan.Digest != r.PostFormValue("plan") {
		return bulkPlanPage(r, do, harm, true)
	}
	if want := strconv.Itoa(len(plan.chosen)); r.PostFormValue("confirm") != want || want == "0" {
		return view{}, schema.NewError(schema.KindInvalidRequest, "nothing was started: the number typed as a confirmation must be %s", want).WithReason("not_confirmed")
	}
	parallel, err := strconv.Atoi(cmp.Or(r.PostFormValue("parallel"), strconv.Itoa(bulkParallel)))
	if err != nil || parallel < 1 || parallel > maxBulkParallel {
		return view{}, schema.NewError(schema.KindInvalidRequest, "parallel must be 1 to %d", maxBulkParallel).WithReason("bad_parallel")
	}
	run, err := r.console.bulk.start(r, r.PostFormValue("key"), plan, reason, parallel)
	if err != nil {
		return view{}, err
	}
	return view{Location: Prefix + "/bulk/" + run.id}, nil
}

// showBulkRun shows the progress of a run.
func showBulkRun(r *request) (view, error) {
	run, err := r.bulkRun()
	if err != nil {
		return view{}, err
	}
	return view{Template: "bulkrun", Title: "Bulk run", Nav: "Bulk", Watch: watchAll, Data: run.view()}, nil
}

// stopBulk makes a run start no further request. The audit trail names who stopped it.
func stopBulk(r *request) (view, error) {
	run, err := r.bulkRun()
	if err != nil {
		return view{}, err
	}
	if err := r.console.bulk.stopBy(r, run); err != nil {
		return view{}, err
	}
	return view{Location: Prefix + "/bulk/" + run.id}, nil
}

func (r *request) bulkRun() (*bulkRun, error) {
	run, ok := r.console.bulk.find(r.PathValue("run"))
	if !ok {
		return nil, schema.NewError(schema.KindNotFound, "this process has no such bulk run: a run is shown by the process that started it, until it stops").
			WithReason("no_run").WithNext("the audit trail and the list of operations have what the run started; plan it again to continue")
	}
	return run, nil
}
