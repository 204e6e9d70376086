// Package template declares what nodes run, and compares it with what they report. A template is a
// named, versioned set of artifacts: the agent, the kernel, the driver of the GPUs, files. Start
// with Template and Compare.
package template

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/text"
)

// Label is the key of the node label that names a node's template, in place of that of its SKU or
// its lifecycle class.
const Label = "gpuaas/template"

// Policy is what a drift leads to.
type Policy string

// The policies.
const (
	// PolicyNotify records a signal.
	PolicyNotify Policy = "notify"
	// PolicyProceed also starts the operation that corrects the drift, if there is one: the upgrade of an
	// agent that is older than the declared version.
	PolicyProceed Policy = "notify_and_proceed"
)

// Limits of a template.
const (
	MaxName        = 64
	MaxAssignments = 64 // SKUs, and classes
	MaxManaged     = inventory.MaxArtifacts
)

// Definition is the content of a template.
type Definition struct {
	// SKUs and Classes are those whose nodes have the template. An SKU or a class has one template at
	// most. That of the SKU takes precedence, and the label Label of a node over both.
	SKUs    []string          `json:"skus,omitempty"`
	Classes []inventory.Class `json:"classes,omitempty"`
	// Artifacts are the declared versions and digests by name. The version Newest of the artifact
	// verifier_set means the newest set.
	Artifacts map[string]string `json:"artifacts"`
	// Managed are further names that a node must not report unless Artifacts has them. A name that ends
	// with * means each name with this beginning.
	Managed []string `json:"managed,omitempty"`
	// Policy is what a drift leads to. Defaults to PolicyNotify.
	Policy Policy `json:"policy,omitempty"`
}

// Change is the body of PUT /api/v1/admin/templates/{template}.
type Change struct {
	Definition
	// Reason is kept in the audit trail.
	Reason string `json:"reason,omitempty"`
}

// Deletion is the body of POST /api/v1/admin/templates/{template}/delete.
type Deletion struct {
	// Reason is kept in the audit trail.
	Reason string `json:"reason,omitempty"`
}

// Template is a template as the admin API returns it.
type Template struct {
	Name string `json:"name"`
	// Version increases with each change of the content, also over a deletion.
	Version int64 `json:"version"`
	Definition
	UpdatedAt time.Time `json:"updated_at"`
	UpdatedBy string    `json:"updated_by"`
}

// List is the response to GET /api/v1/admin/templates.
type List struct {
	Templates []Template `json:"templates"`
}

// ValidName reports whether s can be the name of a template.
func ValidName(s string) bool { return text.IsToken(s, MaxName, "._-") && s[0] != '-' && s[0] != '.' }

// Check sets the default policy, sorts the lists, and reports what is wrong with a definition, as
// KindInvalidRequest.
func (d *Definition) Check() error {
	d.Policy = cmp.Or(d.Policy, PolicyNotify)
	slices.Sort(d.SKUs)
	slices.Sort(d.Classes)
	slices.Sort(d.Managed)
	d.SKUs, d.Classes, d.Managed = slices.Compact(d.SKUs), slices.Compact(d.Classes), slices.Compact(d.Managed)
	known := []inventory.Class{inventory.ClassPersistent, inventory.ClassEphemeral, inventory.ClassSpot}
	switch {
	case d.Policy != PolicyNotify && d.Policy != PolicyProceed:
		return bad("policy", "must be "+string(PolicyNotify)+" or "+string(PolicyProceed))
	case len(d.SKUs) > MaxAssignments || slices.ContainsFunc(d.SKUs, func(s string) bool { return !text.IsToken(s, 64, "._-") }):
		return bad("skus", "must be at most 64 names of SKUs")
	case slices.ContainsFunc(d.Classes, func(c inventory.Class) bool { return !slices.Contains(known, c) }):
		return bad("classes", "must be of persistent, ephemeral and spot")
	case len(d.Artifacts) == 0 || inventory.CheckArtifacts(d.Artifacts) != nil:
		return bad("artifacts", "must be 1 to 32 versions or digests of 1 to 128 printable ASCII characters, by names of a-z A-Z 0-9 . _ / -")
	case len(d.Managed) > MaxManaged || slices.ContainsFunc(d.Managed, func(m string) bool { return !inventory.ValidArtifact(strings.TrimSuffix(m, "*")) }):
		return bad("managed", "must be at most 32 names of artifacts, or beginnings of names with * after them")
	}
	if v, set := d.Artifacts[inventory.ArtifactVerifierSet]; set && v != Newest {
		return bad("artifacts", "verifier_set must be "+Newest+": rotations publish the sets")
	}
	if d.Policy == PolicyProceed && d.Artifacts[inventory.ArtifactAgent] == "" {
		return bad("policy", string(PolicyProceed)+" needs a declared version of the artifact agent: nothing else is corrected")
	}
	return nil
}

func bad(field, must string) error {
	return schema.NewError(schema.KindInvalidRequest, "%s %s", field, must).WithReason("bad_" + field)
}

// Equal reports whether two checked definitions are the same.
func (d Definition) Equal(o Definition) bool {
	return slices.Equal(d.SKUs, o.SKUs) && slices.Equal(d.Classes, o.Classes) && slices.Equal(d.Managed, o.Managed) &&
		d.Policy == o.Policy && maps.Equal(d.Artifacts, o.Artifacts)
}

// manages reports whether a node must not report an artifact that the template does not declare.
func (d Definition) manages(name string) bool {
	return slices.ContainsFunc(d.Managed, func(m string) bool {
		prefix, open := strings.CutSuffix(m, "*")
		return m == name || open && strings.HasPrefix(name, prefix)
	})
}
