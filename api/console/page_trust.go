package console

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func trustRoutes() []Route {
	const path = "/trust/rotation/{decision}"
	return []Route{get("/trust", showTrust), get(path, rotationForm), post(path, trust.RoleAdmin, decideRotation)}
}

// trustPage is the data of the template trust. Trust and Rotation are nil if there is none.
type trustPage struct {
	Trust    *rotation.Trust
	Rotation *rotation.View
	// Left is the number of nodes that have not confirmed the phase, and More how many of them
	// are not listed.
	Left, More int
	Options    []rotationOption
}

// rotationOption is a decision that the open rotation accepts, with the page that asks for its reason.
type rotationOption struct {
	Decision            rotation.Decision
	Does, Command, Link string
	Harm                lifecycle.Harm
}

// showTrust shows the keys with which nodes verify tasks, and the open rotation or the last one.
func showTrust(r *request) (view, error) {
	var p trustPage
	newest, err := fetch[rotation.Trust](r, "/trust", nil)
	if p.Trust = &newest; schema.KindOf(err) == schema.KindNotFound {
		p.Trust, err = nil, nil
	}
	if err != nil {
		return view{}, err
	}
	v, err := fetch[rotation.View](r, "/trust/rotation", nil)
	switch {
	case schema.KindOf(err) == schema.KindNotFound:
	case err != nil:
		return view{}, err
	default:
		p.Rotation = &v
		p.Left = v.Progress.Nodes - v.Progress.Confirmed - v.Progress.Waived
		p.More = max(0, p.Left-len(v.Progress.Waiting))
		p.Options = rotationOptions(v)
	}
	return view{Template: "trust", Title: "Trust", Nav: "Trust", Watch: watchAll, Data: p}, nil
}

// rotationOptions returns the decisions that an open rotation accepts, harmless ones first. To
// waive nodes, an operator names them in the CLI.
func rotationOptions(v rotation.View) (all []rotationOption) {
	add := func(d rotation.Decision, harm lifecycle.Harm, does string) {
		q := url.Values{"rotation": {v.RotationID}, "phase": {string(v.Phase)}}
		all = append(all, rotationOption{Decision: d, Does: does, Harm: harm, Link: Prefix + "/trust/rotation/" + string(d) + "?" + q.Encode(),
			Command: "gpuaas rotate " + string(d) + " --reason " + lifecycle.ReasonPlaceholder})
	}
	switch {
	case v.EndedAt != nil:
		return nil
	case v.Paused:
		add(rotation.Resume, lifecycle.HarmNone, "Continue the rotation")
	default:
		add(rotation.Pause, lifecycle.HarmNone, "Hold the rotation in its phase")
	}
	if v.Reversible {
		add(rotation.Rollback, lifecycle.HarmNone, "Undo the rotation")
	}
	if !v.Approved && v.Kind != rotation.RevokeKey && v.Spec().Back != "" {
		add(rotation.Approve, lifecycle.HarmFinal, "Allow the retirement of the old key")
	}
	return all
}

// rotationPage returns the form of a decision about the rotation that the request names. It is
// KindDecisionOutdated if the rotation is in another phase, or does not accept the decision any longer.
func rotationPage(r *request) (p confirmPage, err error) {
	d := rotation.Decision(r.PathValue("decision"))
	if !slices.Contains(rotation.Decisions(), d) {
		return p, schema.NewError(schema.KindNotFound, "no such decision")
	}
	v, err := fetch[rotation.View](r, "/trust/rotation", nil)
	if err != nil {
		return p, err
	}
	all := rotationOptions(v)
	i := slices.IndexFunc(all, func(o rotationOption) bool { return o.Decision == d })
	if i < 0 || v.RotationID != r.FormValue("rotation") || string(v.Phase) != r.FormValue("phase") {
		return p, &staleError{refusal: schema.NewError(schema.KindDecisionOutdated, "the rotation has changed since the page was loaded").WithReason("stale_page"),
			now: strings.TrimSpace(fmt.Sprintf("The rotation is in the phase %s. %s", v.Phase, v.Outcome)), link: Prefix + "/trust"}
	}
	o := all[i]
	p = confirmPage{Title: fmt.Sprintf("%s the rotation of %s", d, v.Kind), Does: o.Does + ".", Harm: o.Harm, Command: o.Command,
		Hidden: map[string]string{"rotation": v.RotationID, "phase": string(v.Phase)}, Key: newKey(), ReasonRequired: true, Button: string(d), Back: Prefix + "/trust"}
	if o.Harm != lifecycle.HarmNone {
		p.Typed = v.OldKey
	}
	if !r.May(trust.RoleAdmin) {
		p.MayNot = "it needs the role " + string(trust.RoleAdmin)
	}
	return p, nil
}

// rotationForm asks for the reason of a decision about the open rotation.
func rotationForm(r *request) (view, error) {
	p, err := rotationPage(r)
	if err != nil {
		return view{}, err
	}
	return p.form(), nil
}

// decideRotation sends a decision about the rotation that the form names.
func decideRotation(r *request) (view, error) {
	p, err := rotationPage(r)
	if err != nil {
		return view{}, err
	}
	if v, ok := p.answered(r); !ok {
		return v, nil
	}
	body := rotation.Decide{Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	_, err = submit[rotation.View](r, "/trust/rotation/"+r.PathValue("decision"), body, r.PostFormValue("key"))
	return view{Location: p.Back}, err
}
