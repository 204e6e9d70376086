package store

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store/sqlc"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Templates stores templates and how nodes differ from them. It implements adminapi.Templates and
// activities.Drifts.
type Templates struct{ db *db }

// The kinds of assignments.
const (
	assignedSKU   = "sku"
	assignedClass = "class"
)

// maxTemplates bounds the list of templates.
const maxTemplates = 1000

const selectTemplates = `SELECT t.name, t.version, t.artifacts, t.managed, t.policy, t.updated_at, t.updated_by,
		ARRAY(SELECT value FROM template_assignments WHERE template = t.name AND kind = 'sku' ORDER BY value) AS skus,
		ARRAY(SELECT value FROM template_assignments WHERE template = t.name AND kind = 'class' ORDER BY value) AS classes
	FROM templates t`

// ListTemplates implements adminapi.Templates.
func (s *Templates) ListTemplates(ctx context.Context) ([]template.Template, error) {
	return s.templates(ctx, "listing templates", &filter{})
}

func (s *Templates) templates(ctx context.Context, doing string, f *filter) ([]template.Template, error) {
	f.where("t.deleted_at IS NULL")
	all, _, err := page(ctx, s.db, listQuery{doing, selectTemplates, "t.name", maxTemplates}, f, func(t template.Template) []string { return []string{t.Name} })
	return all, err
}

// Template implements adminapi.Templates.
func (s *Templates) Template(ctx context.Context, name string) (template.Template, error) {
	f := &filter{}
	f.where("t.name = " + f.arg(name))
	found, err := s.templates(ctx, "reading template "+name, f)
	if err == nil && len(found) == 0 {
		err = errNoTemplate(name)
	}
	if err != nil {
		return template.Template{}, err
	}
	return found[0], nil
}

func errNoTemplate(name string) error {
	return schema.NewError(schema.KindNotFound, "no template %q", name).WithNext("gpuaas template list")
}

// SetTemplate implements adminapi.Templates. The audit row is in the system stream, and so is that
// of a refusal.
func (s *Templates) SetTemplate(ctx context.Context, name string, c template.Change, releases trust.SignedReleases, by audit.Subject) (template.Template, error) {
	return write(ctx, s.db, "storing template "+name, func(ctx context.Context, tx *tx) (template.Template, error) {
		was, before, err := lockTemplate(ctx, tx, name)
		if err != nil {
			return was, err
		}
		if was.UpdatedBy != "" && was.Equal(c.Definition) && releases == before {
			return was, nil
		}
		is := template.Template{Name: name, Version: was.Version + 1, Definition: c.Definition, UpdatedBy: by.Actor}
		e := subjectEvent(by, audit.SystemStream, audit.TemplateSet, name, changes(was, is))
		e.Reason = c.Reason
		if is.UpdatedAt, err = putTemplate(ctx, tx, is, releases); err != nil {
			return is, refuse(err, e)
		}
		tx.note(e)
		return is, nil
	})
}

// lockTemplate locks the row of a template until the end of the transaction, and returns the template
// with its releases. UpdatedBy is empty if there is none; a deleted one has its version.
func lockTemplate(ctx context.Context, tx *tx, name string) (t template.Template, releases trust.SignedReleases, err error) {
	row, err := tx.LockTemplate(ctx, name)
	if err != nil {
		return t, releases, orMissing(err, nil)
	}
	t = template.Template{Name: name, Version: row.Version}
	if row.DeletedAt != nil {
		return t, releases, nil
	}
	t.UpdatedAt, t.UpdatedBy = row.UpdatedAt, row.UpdatedBy
	t.Managed, t.Policy = row.Managed, template.Policy(row.Policy)
	if err := json.Unmarshal(row.Artifacts, &t.Artifacts); err != nil {
		return t, releases, schema.Wrap(schema.KindInternal, err, "decoding template %s", name)
	}
	assigned, err := tx.TemplateAssignments(ctx, name)
	for _, a := range assigned {
		if a.Kind == assignedSKU {
			t.SKUs = append(t.SKUs, a.Value)
		} else {
			t.Classes = append(t.Classes, inventory.Class(a.Value))
		}
	}
	return t, trust.SignedReleases{AMD64: row.AgentRelease, ARM64: row.AgentReleaseArm64}, err
}

// putTemplate stores a template and its assignments.
func putTemplate(ctx context.Context, tx *tx, t template.Template, releases trust.SignedReleases) (at time.Time, err error) {
	unknown, err := tx.UnknownSKUs(ctx, t.SKUs)
	if err == nil && len(unknown) > 0 {
		err = schema.NewError(schema.KindInvalidRequest, "no SKU %q", unknown[0]).WithReason("sku_unknown").WithNext("gpuaas sku list")
	}
	if err != nil {
		return at, err
	}
	artifacts, err := json.Marshal(t.Artifacts)
	if err != nil {
		return at, err
	}
	at, err = tx.PutTemplate(ctx, sqlc.PutTemplateParams{Name: t.Name, Version: t.Version, Artifacts: artifacts, Managed: append([]string{}, t.Managed...),
		Policy: string(t.Policy), AgentRelease: releases.AMD64, AgentReleaseArm64: releases.ARM64, UpdatedBy: t.UpdatedBy})
	if postgres.NotFound(err) {
		err = schema.NewError(schema.KindServiceUnavailable, "another request changed template %s at the same time", t.Name).WithNext("repeat the request")
	}
	if err == nil {
		err = tx.Unassign(ctx, t.Name)
	}
	if err == nil {
		err = assign(ctx, tx, t.Name, assignedSKU, t.SKUs)
	}
	if err == nil {
		err = assign(ctx, tx, t.Name, assignedClass, texts(t.Classes))
	}
	return at, err
}

func texts[T ~string](values []T) []string {
	return convert(values, func(v T) string { return string(v) })
}

// assign gives SKUs or classes their template. KindAlreadyExists with reason template_assigned if one
// has another.
func assign(ctx context.Context, tx *tx, name, kind string, values []string) error {
	done, err := tx.Assign(ctx, kind, values, name)
	if err != nil || len(done) == len(values) {
		return err
	}
	for _, v := range values {
		if slices.Contains(done, v) {
			continue
		}
		other, err := tx.AssignedTo(ctx, kind, v)
		if err != nil {
			return err
		}
		return schema.NewError(schema.KindAlreadyExists, "the %s %s has the template %s", kind, v, other).WithReason("template_assigned").
			WithNext("gpuaas template show " + other)
	}
	return nil
}

// changes describes the difference between two contents of a template for the audit trail.
func changes(was, is template.Template) map[string]string {
	detail := map[string]string{"version": strconv.FormatInt(is.Version, 10)}
	note := func(key, a, b string) {
		if a != b {
			detail[key] = strings.TrimSpace(a + " to " + b)
		}
	}
	note("skus", strings.Join(was.SKUs, ","), strings.Join(is.SKUs, ","))
	note("classes", strings.Join(texts(was.Classes), ","), strings.Join(texts(is.Classes), ","))
	note("managed", strings.Join(was.Managed, ","), strings.Join(is.Managed, ","))
	note("policy", string(was.Policy), string(is.Policy))
	for name := range maps.Keys(was.Artifacts) {
		note("artifact "+name, was.Artifacts[name], is.Artifacts[name])
	}
	for name := range maps.Keys(is.Artifacts) {
		note("artifact "+name, was.Artifacts[name], is.Artifacts[name])
	}
	return detail
}

// DeleteTemplate implements adminapi.Templates. The audit row is in the system stream.
func (s *Templates) DeleteTemplate(ctx context.Context, name, reason string, by audit.Subject) (template.Template, error) {
	return write(ctx, s.db, "deleting template "+name, func(ctx context.Context, tx *tx) (template.Template, error) {
		was, _, err := lockTemplate(ctx, tx, name)
		if err == nil && was.UpdatedBy == "" {
			err = errNoTemplate(name)
		}
		if err != nil {
			return was, err
		}
		if _, err := tx.DeleteTemplate(ctx, name); err != nil {
			return was, err
		}
		e := subjectEvent(by, audit.SystemStream, audit.TemplateDeleted, name, map[string]string{"version": strconv.FormatInt(was.Version, 10)})
		e.Reason = reason
		tx.note(e)
		return was, tx.Unassign(ctx, name)
	})
}
