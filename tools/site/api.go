package main

import (
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A document is the part of an OpenAPI document that the page shows.
type document struct {
	Info struct {
		Title, Description string
	}
	Tags       []struct{ Name, Description string }
	Paths      ordered[ordered[operation]]
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]response
		Schemas    ordered[schema]
	}
}

type operation struct {
	OperationID string `yaml:"operationId"`
	Tags        []string
	Summary     string
	Description string
	Role        string   `yaml:"x-role"`
	RoleAlso    string   `yaml:"x-role-also"`
	Errors      []string `yaml:"x-error-codes"`
	Parameters  []parameter
	RequestBody *response `yaml:"requestBody"`
	Responses   ordered[response]
	// Method and Path are those of the operation's keys.
	Method, Path string `yaml:"-"`
}

type parameter struct {
	Ref         string `yaml:"$ref"`
	Name, In    string
	Required    bool
	Description string
	Schema      schema
}

// A response is also the form of a request body.
type response struct {
	Ref         string `yaml:"$ref"`
	Description string
	Content     map[string]struct{ Schema schema }
}

type schema struct {
	Ref         string `yaml:"$ref"`
	Type        any
	Format      string
	Description string
	Enum        []any
	Items       *schema
	Properties  ordered[schema]
	Required    []string
	AllOf       []schema `yaml:"allOf"`
	OneOf       []schema `yaml:"oneOf"`
	AnyOf       []schema `yaml:"anyOf"`
}

// ordered is a map in the order of its document.
type ordered[T any] []entry[T]

type entry[T any] struct {
	Name  string
	Value T
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (o *ordered[T]) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want a mapping", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		var e entry[T]
		if err := node.Content[i+1].Decode(&e.Value); err != nil {
			return fmt.Errorf("%s: %w", node.Content[i].Value, err)
		}
		e.Name = node.Content[i].Value
		*o = append(*o, e)
	}
	return nil
}

// A tag is a group of operations.
type tag struct {
	Name, Description string
	Operations        []operation
}

// renderAPI writes the page of the HTTP API.
func (s site) renderAPI() error {
	source, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(openAPI)))
	if err != nil {
		return err
	}
	var d document
	if err := yaml.Unmarshal(source, &d); err != nil {
		return err
	}
	var b strings.Builder
	err = s.layout.ExecuteTemplate(&b, "api.tmpl", map[string]any{"Info": d.Info, "Tags": d.tags(), "Schemas": d.schemas()})
	if err != nil {
		return err
	}
	return s.put(page{Title: "HTTP API", Body: template.HTML(b.String()), Path: apiPage, Source: repository + "blob/main/" + openAPI})
}

// tags returns the operations by tag, with their references replaced.
func (d document) tags() (tags []tag) {
	for _, t := range d.Tags {
		group := tag{Name: t.Name, Description: t.Description}
		for _, p := range d.Paths {
			for _, o := range p.Value {
				op := o.Value
				if slices.Contains(op.Tags, t.Name) {
					op.Method, op.Path = strings.ToUpper(o.Name), p.Name
					d.resolve(&op)
					group.Operations = append(group.Operations, op)
				}
			}
		}
		tags = append(tags, group)
	}
	return tags
}

func (d document) resolve(op *operation) {
	for i, p := range op.Parameters {
		if p.Ref != "" {
			op.Parameters[i] = d.Components.Parameters[path.Base(p.Ref)]
		}
	}
	for i, r := range op.Responses {
		if r.Value.Ref != "" {
			op.Responses[i].Value = d.Components.Responses[path.Base(r.Value.Ref)]
		}
	}
}

// A described is a schema of the components for the template.
type described struct {
	Name, Description string
	Form              template.HTML
	Fields            []field
}

type field struct {
	Name        string
	Required    bool
	Form        template.HTML
	Description string
}

func (d document) schemas() (all []described) {
	for _, e := range d.Components.Schemas {
		next := described{Name: e.Name, Description: e.Value.Description, Form: e.Value.HTML()}
		for _, p := range e.Value.Properties {
			next.Fields = append(next.Fields, field{p.Name, slices.Contains(e.Value.Required, p.Name), p.Value.HTML(), p.Value.Description})
		}
		all = append(all, next)
	}
	return all
}

// HTML describes the form of a schema in a few words, with links to the schemas that it names.
func (s schema) HTML() template.HTML {
	switch parts := slices.Concat(s.AllOf, s.OneOf, s.AnyOf); {
	case s.Ref != "":
		name := template.HTMLEscapeString(path.Base(s.Ref))
		return template.HTML(`<a href="#` + name + `">` + name + `</a>`)
	case len(parts) > 0:
		var forms []string
		for _, p := range parts {
			forms = append(forms, string(p.HTML()))
		}
		return template.HTML(strings.Join(forms, " or "))
	case s.Items != nil:
		return "list of " + s.Items.HTML()
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			values = append(values, "<code>"+template.HTMLEscapeString(fmt.Sprint(v))+"</code>")
		}
		return template.HTML(strings.Join(values, ", "))
	case s.Type == nil:
		return "any"
	}
	form := fmt.Sprint(s.Type)
	if s.Format != "" {
		form += " (" + s.Format + ")"
	}
	return template.HTML(template.HTMLEscapeString(form))
}

// Form describes the body of a response, "" if it has none.
func (r response) Form() template.HTML {
	for _, media := range []string{"application/json", "text/event-stream", "application/octet-stream"} {
		if content, ok := r.Content[media]; ok {
			return content.Schema.HTML()
		}
	}
	for media := range r.Content {
		return template.HTML(template.HTMLEscapeString(media))
	}
	return ""
}
