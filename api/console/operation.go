package console

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func operationRoutes() []Route {
	all := []Route{shared("/operations", operationList), shared("/operations/{operation}", operationPage)}
	for _, d := range lifecycle.Decisions() {
		path := "/operations/{operation}/" + string(d)
		all = append(all, get(path, func(r *request) (view, error) { return decisionForm(r, d) }),
			post(path, d.Role(), func(r *request) (view, error) { return decide(r, d) }))
	}
	return all
}

// operationData is the data of the template operation.
type operationData struct {
	wire.OperationView

	Options []option
	// Waits are the workloads that a drain which runs waits for.
	Waits []string
	// Now is the time to which phases that run have taken.
	Now time.Time
	// Command shows the operation on the command line.
	Command string
}

// Took returns how long a phase took, or takes so far.
func (d operationData) Took(p lifecycle.Phase) string {
	switch {
	case p.StartedAt == nil:
		return ""
	case p.EndedAt != nil:
		return lifecycle.Span(p.EndedAt.Sub(*p.StartedAt))
	}
	return lifecycle.Span(d.Now.Sub(*p.StartedAt))
}

// Late reports whether the phase is past its budget.
func (d operationData) Late() bool {
	deadline := d.Operation.DeadlineAt
	return deadline != nil && d.Operation.Stuck == nil && d.Now.After(*deadline)
}

// Ended reports whether the operation has ended.
func (d operationData) Ended() bool { return d.Operation.Status.Ended() }

// operationPage shows the phases of an operation, why it is parked, and the decisions that are
// possible.
func operationPage(r *request) (view, error) {
	v, err := fetchRecent[wire.OperationView](r, operationAddress(r), nil)
	if err != nil {
		return view{}, err
	}
	d := operationData{OperationView: v, Now: r.Now, Command: lifecycle.OpCommand("show", v.Operation.Action, v.Node.Host)}
	if s := v.Operation.Stuck; s != nil {
		d.Options = optionsOf(r, v.Operation.OperationID, v.Node.Host, *s)
	}
	d.Waits = drainWaits(r, v)
	return view{Template: "operation", Title: fmt.Sprintf("%s %s", v.Operation.Action, v.Node.Host), Nav: "Operations", Watch: v.Node.NodeID, Data: d}, nil
}

func readOperation(r *request) (wire.OperationView, error) {
	return fetch[wire.OperationView](r, operationAddress(r), nil)
}

// operationAddress is the path in the admin API of the operation that a request names.
func operationAddress(r *request) string {
	return "/operations/" + url.PathEscape(r.PathValue("operation"))
}

// drainWaits returns the workloads that a drain which runs waits for, as the node reported them last.
func drainWaits(r *request, v wire.OperationView) []string {
	runs := func(p lifecycle.Phase) bool {
		return p.Name == lifecycle.PhaseDrain && p.State == lifecycle.PhaseRunning
	}
	if !slices.ContainsFunc(v.Operation.Phases, runs) {
		return nil
	}
	n, err := fetchRecent[wire.NodeView](r, "/nodes/"+v.Node.NodeID, nil)
	if err != nil {
		return []string{"not known now: " + problem(err)}
	}
	return n.Blockers()
}

// decisionForm asks for the reason of a decision about the park that the page showed.
func decisionForm(r *request, d lifecycle.Decision) (view, error) {
	v, err := readOperation(r)
	if err != nil {
		return view{}, err
	}
	p, err := decisionOf(r, v, d)
	if err != nil {
		return view{}, err
	}
	return p.form(), nil
}

// decisionOf returns the form of a decision. It is KindDecisionOutdated if the operation is not, or
// not any longer, in the park that the request names.
func decisionOf(r *request, v wire.OperationView, d lifecycle.Decision) (confirmPage, error) {
	s, phase, since := v.Operation.Stuck, r.FormValue("phase"), r.FormValue("since")
	if s == nil || s.Phase != phase || s.Since.UTC().Format(time.RFC3339Nano) != since {
		return confirmPage{}, stale(v, schema.NewError(schema.KindDecisionOutdated, "the operation has left the park that the page showed").WithReason("stale_page"))
	}
	i := slices.IndexFunc(s.Options, func(o lifecycle.Option) bool { return o.Decision == d })
	if i < 0 {
		return confirmPage{}, stale(v, schema.NewError(schema.KindDecisionOutdated, "this park does not offer %s", d).WithReason("not_offered"))
	}
	o := optionsOf(r, v.Operation.OperationID, v.Node.Host, *s)[i]
	p := confirmPage{Title: fmt.Sprintf("%s the %s of %s", d, v.Operation.Action, v.Node.Host), Does: o.Does, Harm: o.Harm, Command: o.Command,
		Hidden: map[string]string{"phase": phase, "since": since}, Key: newKey(), ReasonRequired: true,
		Button: string(d), Back: Prefix + "/operations/" + v.Operation.OperationID}
	if o.Harm != lifecycle.HarmNone {
		p.Typed = v.Node.Host
	}
	if o.Needs != "" {
		p.MayNot = "it needs the role " + string(o.Needs)
	}
	return p, nil
}

// stale explains a refusal with the state of the operation now.
func stale(v wire.OperationView, refusal error) error {
	o := v.Operation
	now := fmt.Sprintf("The %s of %s is %s.", o.Action, v.Node.Host, o.Status)
	if s := o.Stuck; s != nil {
		now = fmt.Sprintf("The %s of %s is parked in phase %s since %s: %s (%s).", o.Action, v.Node.Host, s.Phase, stamp(s.Since), s.Message, s.Reason)
	}
	return &staleError{refusal: refusal, now: now, link: Prefix + "/operations/" + o.OperationID}
}

// decide sends a decision about the park that the page showed.
func decide(r *request, d lifecycle.Decision) (view, error) {
	before, err := readOperation(r)
	if err != nil {
		return view{}, err
	}
	since, err := time.Parse(time.RFC3339Nano, r.PostFormValue("since"))
	if err != nil || r.PostFormValue("phase") == "" {
		return view{}, schema.NewError(schema.KindInvalidRequest, "the form does not name the park that it is about").WithReason("bad_park")
	}
	location := Prefix + "/operations/" + before.Operation.OperationID
	p, outdated := decisionOf(r, before, d)
	if outdated == nil {
		if v, ok := p.answered(r); !ok {
			return v, nil
		}
	}
	// A repeat of a decision that was carried out has left the park, and its key still names it.
	body := wire.ResolveOperation{Reason: r.PostFormValue("reason"), Phase: r.PostFormValue("phase"), StuckSince: &since}
	_, err = submit[wire.OperationView](r, "/operations/"+before.Operation.OperationID+"/"+string(d), body, r.PostFormValue("key"))
	if schema.KindOf(err) == schema.KindDecisionOutdated {
		if now, lookup := readOperation(r); lookup == nil {
			return view{}, stale(now, err)
		}
	}
	return view{Location: location}, err
}

// operationListData is the data of the template operations.
type operationListData struct {
	wire.OperationList

	Filter filter
	// States are the values of the filter status.
	States []lifecycle.OperationState
	Next   string
}

// operationList lists operations, newest first.
func operationList(r *request) (view, error) {
	f := filterOf(r.URL.Query().Get, "node", "action", "status", "open", "since")
	list, err := fetchShared[wire.OperationList](r, "/operations", f.query(r))
	if err != nil {
		return view{}, err
	}
	return view{Template: "operations", Title: "Operations", Nav: "Operations", Watch: watchAll,
		Data: operationListData{list, f, lifecycle.OperationStates(), f.next(r, list.NextPageToken)}}, nil
}
