package adminapi

import (
	"context"
	"net/http"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Templates stores templates and how nodes differ from them.
type Templates interface {
	// ListTemplates lists the templates in order of name.
	ListTemplates(ctx context.Context) ([]template.Template, error)
	// Template returns a template. KindNotFound otherwise.
	Template(ctx context.Context, name string) (template.Template, error)
	// SetTemplate stores a checked template with its audit row, unless it is stored. releases
	// are the signed documents of the declared agent. KindInvalidRequest for an unknown SKU,
	// KindAlreadyExists if an SKU or a class has another template.
	SetTemplate(ctx context.Context, name string, c template.Change, releases trust.SignedReleases, by audit.Subject) (template.Template, error)
	// DeleteTemplate deletes a template with its audit row. KindNotFound.
	DeleteTemplate(ctx context.Context, name, reason string, by audit.Subject) (template.Template, error)
	// Drift compares a node with its template. KindNotFound.
	Drift(ctx context.Context, nodeID string) (template.Report, error)
	// FleetDrift counts the drift that the last scan recorded.
	FleetDrift(ctx context.Context) (template.Fleet, error)
}

// templates serves templates and the drift of nodes.
type templates struct{ base }

// templates returns the endpoints of templates and drift.
func (a *API) templates() []Endpoint {
	t, notFound := templates{a.base}, schema.KindNotFound
	const get, post, put = http.MethodGet, http.MethodPost, http.MethodPut
	const ok, viewer, admin = http.StatusOK, trust.RoleViewer, trust.RoleAdmin
	return []Endpoint{
		a.on(get, "/templates", ok, viewer, t.list),
		a.on(get, "/templates/{template}", ok, viewer, t.show, notFound),
		a.on(put, "/templates/{template}", ok, admin, t.set, notFound, schema.KindAlreadyExists),
		a.on(post, "/templates/{template}/delete", ok, admin, t.remove, notFound),
		a.on(get, "/drift", ok, viewer, t.fleet),
		a.on(get, "/nodes/{node}/drift", ok, viewer, t.drift, notFound),
	}
}

// list lists all templates.
func (t templates) list(c *call) (any, error) {
	if err := t.query(c).check(); err != nil {
		return nil, err
	}
	all, err := t.Templates.ListTemplates(c.Context())
	return template.List{Templates: append([]template.Template{}, all...)}, err
}

// templateName reads the name of a template from the path.
func templateName(c *call) (string, error) {
	name := c.PathValue("template")
	if !template.ValidName(name) {
		return "", schema.NewError(schema.KindNotFound, "no such template").WithNext("gpuaas template list")
	}
	return name, nil
}

// show returns one template.
func (t templates) show(c *call) (any, error) {
	name, err := templateName(c)
	if err == nil {
		err = t.query(c).check()
	}
	if err != nil {
		return nil, err
	}
	return t.Templates.Template(c.Context(), name)
}

// set stores a template. One whose policy upgrades agents needs the release of the declared version.
func (t templates) set(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkTemplate)
	if err != nil {
		return nil, err
	}
	name := c.PathValue("template")
	if !template.ValidName(name) {
		return nil, badField("name", "must be 1 to 64 of a-z A-Z 0-9 . _ - that begin with a letter, a digit or _")
	}
	var signed trust.SignedReleases
	if v := req.Artifacts[inventory.ArtifactAgent]; req.Policy == template.PolicyProceed && v != "" {
		if signed, err = t.releases(v); err != nil {
			return nil, err
		}
	}
	return t.Templates.SetTemplate(c.Context(), name, req, signed, c.by)
}

// releases returns the signed documents of a version, of which there must be one. The policy does not
// upgrade nodes of an architecture without a document.
func (t templates) releases(version string) (trust.SignedReleases, error) {
	amd64, missing := t.Release(version, trust.ArchAMD64)
	arm64, err := t.Release(version, trust.ArchARM64)
	for _, err := range []error{missing, err} {
		if err != nil && schema.KindOf(err) != schema.KindNotFound {
			return trust.SignedReleases{}, err
		}
	}
	if amd64 == "" && arm64 == "" {
		return trust.SignedReleases{}, missing
	}
	return trust.SignedReleases{AMD64: amd64, ARM64: arm64}, nil
}

func checkTemplate(r *template.Change) error {
	if err := r.Check(); err != nil {
		return err
	}
	return checkReason(r.Reason, false)
}

// remove deletes a template.
func (t templates) remove(c *call) (any, error) {
	req, err := body(c, edge.DecodeOptional, func(d *template.Deletion) error { return checkReason(d.Reason, false) })
	if err != nil {
		return nil, err
	}
	name, err := templateName(c)
	if err != nil {
		return nil, err
	}
	return t.Templates.DeleteTemplate(c.Context(), name, req.Reason, c.by)
}

// fleet counts the drift of all nodes.
func (t templates) fleet(c *call) (any, error) {
	if err := t.query(c).check(); err != nil {
		return nil, err
	}
	return t.Templates.FleetDrift(c.Context())
}

// drift compares a node with its template. The path has the node's ID, its host name, or the ID of its
// live instance.
func (t templates) drift(c *call) (any, error) {
	if err := t.query(c).check(); err != nil {
		return nil, err
	}
	node, err := t.find(c)
	if schema.KindOf(err) == schema.KindNotFound {
		node, err = t.ofInstance(c, err)
	}
	if err != nil {
		return nil, err
	}
	return t.Templates.Drift(c.Context(), node.ID)
}

// ofInstance reads the node of a live instance, whose ID the path has. It returns missing if there is no
// such instance.
func (t templates) ofInstance(c *call, missing error) (wire.NodeView, error) {
	id := c.PathValue("node")
	if !schema.IsID(id) {
		return wire.NodeView{}, missing
	}
	i, err := t.Machines.Instance(c.Context(), id)
	switch {
	case schema.KindOf(err) == schema.KindNotFound:
		return wire.NodeView{}, missing
	case err != nil:
		return wire.NodeView{}, err
	case !i.State.Live():
		return wire.NodeView{}, schema.NewError(schema.KindNotFound, "instance %s of node %s ended: it is not compared", id, i.Host).
			WithNext("gpuaas node drift " + i.Host)
	}
	return t.named(c.Context(), i.NodeID)
}
