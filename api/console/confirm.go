package console

import (
	"net/http"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
)

// confirmPage is the data of the template confirm: the form that comes before each change. It says
// what the change does, and asks for a reason, and for a name before what may do damage.
type confirmPage struct {
	// Title is what is done, Does its effect, and Command the same on the command line.
	Title, Does, Command string
	Harm                 lifecycle.Harm
	// Plan is what an action would do, nil for other changes.
	Plan *preview.Plan
	// Fields are the options of an action.
	Fields []field
	// Hidden are values that the form sends unchanged.
	Hidden map[string]string
	// Key makes a second click have the effect of one.
	Key string
	// Typed is the name of the node or key that must be typed, empty for none.
	Typed string
	// ReasonRequired is false if the admin API needs no reason.
	ReasonRequired bool
	// Reason is what was typed before, and Refused why the form was not accepted.
	Reason, Refused string
	// Button is the label of the button, and Back the page to return to.
	Button, Back string
	// MayNot is why the form has no button, empty if it has one.
	MayNot string
}

// field is an option of an action: a check box, or a number or a text.
type field struct {
	Name, Label, Type, Value, Hint string
	Required, Checked              bool
}

// form returns the page of a form.
func (p confirmPage) form() view {
	return view{Template: "confirm", Title: p.Title, Data: p}
}

// newKey makes the idempotency key of a form.
func newKey() string { return "console-" + schema.NewID() }

// answered returns the form again if it lacks a name that must be typed or a reason. ok is true if
// the change can be made.
func (p confirmPage) answered(r *request) (v view, ok bool) {
	p.Key = r.PostFormValue("key")
	switch {
	case p.Typed != "" && strings.TrimSpace(r.PostFormValue("typed")) != p.Typed:
		return p.refused(r, "Type "+p.Typed+" to confirm."), false
	case p.ReasonRequired && strings.TrimSpace(r.PostFormValue("reason")) == "":
		return p.refused(r, "Give a reason: the audit trail keeps it."), false
	case p.Key == "":
		p.Key = newKey()
		return p.refused(r, "The form was incomplete. Send it again."), false
	}
	return view{}, true
}

// refused returns the form again with what it had, and why it was not accepted.
func (p confirmPage) refused(r *request, why string) view {
	p.Refused, p.Reason = why, strings.TrimSpace(r.PostFormValue("reason"))
	for i, f := range p.Fields {
		p.Fields[i].Value, p.Fields[i].Checked = printable(r.PostFormValue(f.Name)), r.PostFormValue(f.Name) != ""
	}
	v := p.form()
	v.Status = http.StatusBadRequest
	return v
}
