package console

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static
var staticFiles embed.FS

// pages are the parsed templates, by name.
type pages struct {
	byName map[string]*template.Template
	assets *assets
}

// parsePages parses each page with the layout and the parts that pages share.
func parsePages(a *assets, now func() time.Time) (*pages, error) {
	p := &pages{byName: map[string]*template.Template{}, assets: a}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		base := strings.TrimSuffix(path.Base(name), ".html")
		if base == "layout" || base == "parts" {
			continue
		}
		t, err := template.New(base).Funcs(functions(now)).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", name)
		if err != nil {
			return nil, err
		}
		p.byName[base] = t
	}
	return p, nil
}

// layout is the data of the layout. The block main has it too.
type layout struct {
	view

	Subject  Subject
	Region   bool
	Revision string
	Env      string
	// At is when the data was read.
	At            time.Time
	CSS, JS, Icon string
	Navigation    []navEntry
}

type navEntry struct{ Name, Path string }

// May reports whether the subject has at least the role.
func (l layout) May(role trust.Role) bool { return l.Subject.Role.Allows(role) }

// MayOperate reports whether the subject may start operations and decide about them.
func (l layout) MayOperate() bool { return l.May(trust.RoleOperator) }

// MayAdmin reports whether the subject may also do what cannot be undone.
func (l layout) MayAdmin() bool { return l.May(trust.RoleAdmin) }

// navigation returns the entries of the navigation.
func navigation() []navEntry {
	return []navEntry{
		{"Overview", Prefix + "/"},
		{"Nodes", Prefix + "/nodes"},
		{"Operations", Prefix + "/operations"},
		{"Bulk", Prefix + "/bulk"},
		{"Agents", Prefix + "/agents"},
		{"Trust", Prefix + "/trust"},
		{"Audit", Prefix + "/audit"},
	}
}

// render writes a page. It renders to memory first, so that an error is not sent as half a page.
func (c *Console) render(w http.ResponseWriter, r *request, v view) error {
	t := c.pages.byName[v.Template]
	if t == nil {
		return schema.NewError(schema.KindInternal, "there is no template %q", v.Template)
	}
	l := layout{view: v, Subject: r.Subject, Region: r.Region, Revision: r.Revision, Env: c.cfg.Env, At: r.Now,
		CSS: c.assets.url("console.css"), JS: c.assets.url("console.js"), Icon: c.assets.url("icon.svg"), Navigation: navigation()}
	if !r.at.IsZero() {
		l.At = r.at
	}
	var body bytes.Buffer
	if err := c.compose(&body, r, t, l); err != nil {
		c.cfg.Log.Error("cannot render a page", slog.String("template", v.Template), slog.Any("err", err))
		return schema.NewError(schema.KindInternal, "the page cannot be rendered")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.Header().Set("Vary", "Gpuaas-Region")
	if v.Status != 0 {
		w.WriteHeader(v.Status)
	}
	_, _ = w.Write(body.Bytes()) // the client is gone
	return nil
}

// compose renders the region of a page, and the layout around it unless the script asks for the
// region only.
func (c *Console) compose(body *bytes.Buffer, r *request, t *template.Template, l layout) error {
	region, err := c.regions.of(r, func() ([]byte, error) {
		var out bytes.Buffer
		err := t.ExecuteTemplate(&out, "region", l)
		return out.Bytes(), err
	})
	if err != nil {
		return err
	}
	if r.Region {
		body.Write(region)
		return nil
	}
	if err := t.ExecuteTemplate(body, "top", l); err != nil {
		return err
	}
	body.Write(region)
	return t.ExecuteTemplate(body, "bottom", l)
}

// functions are the functions of the templates.
func functions(now func() time.Time) template.FuncMap {
	return template.FuncMap{
		"ago":    func(t any) string { return since(now(), t) },
		"span":   span,
		"stamp":  stamp,
		"clip":   func(limit int, s any) string { return text.Line(fmt.Sprint(s), limit) },
		"count":  text.Count,
		"short":  func(id string) string { return id[max(0, len(id)-8):] },
		"mark":   mark,
		"tone":   tone,
		"node":   func(id string) string { return Prefix + "/nodes/" + id },
		"op":     func(id string) string { return Prefix + "/operations/" + id },
		"button": func(h lifecycle.Harm) string { return "harm-" + string(h) },
		"list":   func(items ...any) []any { return items },
		"title":  func(s any) string { return text.Line(strings.ReplaceAll(fmt.Sprint(s), "_", " "), maxName) },
	}
}

// maxName is the number of characters of a state or another name that are shown.
const maxName = 80

// asTime returns a time or the time that a pointer has; zero without one.
func asTime(v any) time.Time {
	switch t := v.(type) {
	case time.Time:
		return t
	case *time.Time:
		if t != nil {
			return *t
		}
	}
	return time.Time{}
}

// since returns how long ago a time is, "n/a" without one.
func since(now time.Time, v any) string {
	t := asTime(v)
	if t.IsZero() {
		return "n/a"
	}
	return lifecycle.Span(max(now.Sub(t), 0))
}

// span returns a duration or a number of seconds as text.
func span(v any) string {
	switch d := v.(type) {
	case time.Duration:
		return lifecycle.Span(d)
	case float64:
		return lifecycle.Span(time.Duration(d * float64(time.Second)))
	case int64:
		return lifecycle.Span(time.Duration(d) * time.Second)
	}
	return "n/a"
}

// stamp returns a time in UTC, "n/a" without one.
func stamp(v any) string {
	t := asTime(v)
	if t.IsZero() {
		return "n/a"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// mark is the sign of the state of a phase, an operation, a task, a node or a condition, so that
// color is never the only difference.
func mark(state any) string {
	marks := map[string]string{"good": "✓", "bad": "✗", "warn": "!", "busy": "▸"}
	if m, ok := marks[tone(state)]; ok {
		return m
	}
	return "·"
}

// tone is the class of a state: good, bad, warn, busy or quiet.
func tone(state any) string {
	switch fmt.Sprint(state) {
	case "completed", "succeeded", "active", "healthy", "accepted", "none":
		return "good"
	case "failed", "lost", "unhealthy", "refused", "rejected", "abandoned":
		return "bad"
	case "parked", "forced", "force", "skip", "skipped", "offline", "quarantined", "unknown", "work", "final",
		string(bulkWaiting), string(bulkUnknown):
		return "warn"
	case "running", "draining", "dispatched", "enrolling", "bootstrap_issued", "provisioning", string(bulkSent):
		return "busy"
	}
	return "quiet"
}
