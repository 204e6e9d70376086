package console

import (
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func trustRoutes() []Route {
	return []Route{
		get("/trust", showTrust),
		post("/trust/rotation/{decision}", trust.RoleAdmin, decideRotation),
	}
}

// trustPage is the data of the template trust. Trust and Rotation are nil if there is none.
type trustPage struct {
	Trust    *rotation.Trust
	Rotation *rotation.View
	// Left is the number of nodes that have not confirmed the phase, and More how many of them
	// are not listed.
	Left, More int
	Decisions  []rotationButton
}

// rotationButton is a decision about the open rotation.
type rotationButton struct {
	Decision rotation.Decision
	Does     string
	// Final is set if the decision allows what cannot be undone.
	Final bool
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
		p.Decisions = rotationButtons(v)
	}
	page := view{Template: "trust", Title: "Trust", Nav: "Trust", Watch: watchAll, Data: p}
	if len(p.Decisions) > 0 && r.May(trust.RoleAdmin) {
		page.Watch = "" // it has fields
	}
	return page, nil
}

// rotationButtons returns the decisions that an open rotation accepts, harmless ones first. To
// waive nodes, an operator names them in the CLI.
func rotationButtons(v rotation.View) (all []rotationButton) {
	if v.EndedAt != nil {
		return nil
	}
	if v.Paused {
		all = append(all, rotationButton{Decision: rotation.Resume, Does: "continue the rotation"})
	} else {
		all = append(all, rotationButton{Decision: rotation.Pause, Does: "hold the rotation in its phase"})
	}
	if v.Reversible {
		all = append(all, rotationButton{Decision: rotation.Rollback, Does: "undo the rotation"})
	}
	if !v.Approved && v.Kind != rotation.RevokeKey && v.Spec().Back != "" {
		all = append(all, rotationButton{Decision: rotation.Approve, Does: "allow the retirement of the old key, which cannot be undone", Final: true})
	}
	return all
}

// decideRotation sends a decision about the rotation that the page showed. Another step of the
// rotation than that of the form is an outdated page.
func decideRotation(r *request) (view, error) {
	d := rotation.Decision(r.PathValue("decision"))
	if !slices.Contains(rotation.Decisions(), d) {
		return view{}, schema.NewError(schema.KindNotFound, "no such decision")
	}
	now, err := fetch[rotation.View](r, "/trust/rotation", nil)
	if err != nil {
		return view{}, err
	}
	if now.RotationID != r.PostFormValue("rotation") || string(now.Phase) != r.PostFormValue("phase") {
		return view{}, &staleError{schema.NewError(schema.KindDecisionOutdated, "the rotation has changed since the page was loaded; nothing was done").
			WithReason("page_outdated"), "phase " + string(now.Phase) + " " + string(now.Outcome), Prefix + "/trust"}
	}
	body := rotation.Decide{Reason: strings.TrimSpace(r.PostFormValue("reason"))}
	if _, err := submit[rotation.View](r, "/trust/rotation/"+string(d), body, ""); err != nil {
		return view{}, err
	}
	return view{Location: Prefix + "/trust"}, nil
}
