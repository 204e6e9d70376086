package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/template"
)

func newTemplate(e *env) *cobra.Command {
	return newGroup("template", "Manage what nodes must run",
		`Shows and changes templates. A template declares the versions and digests of artifacts that
the nodes of SKUs or lifecycle classes must run: agent, kernel, driver of the GPUs, files.
A node whose label gpuaas/template names a template has that one. docs/templates.md describes the
fields. "gpuaas node drift" compares a node with its template.`,
		newTemplateList(e), newTemplateShow(e), newTemplateSet(e), newTemplateDelete(e), newTemplateDrift(e))
}

func newTemplateList(e *env) *cobra.Command {
	c := e.command("list", "List the templates", "Lists the templates by name.", "  gpuaas template list\n  gpuaas template list -o wide",
		func(ctx context.Context, _ string) error {
			list, err := decode[template.List](e.api().ListTemplates(ctx, nil))
			if err != nil {
				return err
			}
			return printList(e.console, listing[template.Template]{
				object: list, rows: list.Templates, empty: "no template; store one with: gpuaas template set NAME --file FILE",
				header: []string{"NAME", "VERSION", "SKUS", "CLASSES", "ARTIFACTS", "POLICY", "UPDATED", "BY"}, wide: 2,
				cells: func(t template.Template) []string {
					return []string{t.Name, strconv.FormatInt(t.Version, 10), dash(strings.Join(t.SKUs, ",")), dash(strings.Join(texts(t.Classes), ",")),
						strconv.Itoa(len(t.Artifacts)), string(t.Policy), t.UpdatedAt.UTC().Format(time.RFC3339), t.UpdatedBy}
				},
				name: func(t template.Template) string { return t.Name },
			})
		})
	c.Aliases = []string{"ls"}
	return c
}

func newTemplateShow(e *env) *cobra.Command {
	return e.command("show TEMPLATE", "Show a template",
		`Prints a template in the form that gpuaas template set accepts after a change. With -o json
or -o yaml the output has its name, its version and who stored it, too.`,
		"  gpuaas template show gpu-h100 > gpu-h100.yaml\n  gpuaas template show gpu-h100 -o json | jq .artifacts",
		func(ctx context.Context, name string) error {
			t, err := decode[template.Template](e.api().GetTemplate(ctx, name, nil))
			if err != nil {
				return err
			}
			document, err := yaml.Marshal(t.Definition)
			if err != nil {
				return schema.Wrap(schema.KindInternal, err, "the template in the response cannot be rendered")
			}
			e.message("template %s version %d, stored by %s at %s", t.Name, t.Version, clean(t.UpdatedBy), t.UpdatedAt.UTC().Format(time.RFC3339))
			return e.print(t, func(w io.Writer) { w.Write(document) }, t.Name) //nolint:errcheck // print reports it
		})
}

func newTemplateSet(e *env) *cobra.Command {
	var file string
	var change template.Change
	var c *cobra.Command
	c = e.command("set NAME", "Store a template",
		`Stores a template from a file in YAML or JSON, as the next version of the template with the
name. The next scan compares the nodes with it, within 10 minutes. A SKU or a class has one
template at most. The command requires the role admin.

With the policy notify_and_proceed, nodes whose agent is older than declared are upgraded, a
few at a time. The release must be in the folder GPUAAS_AGENT_RELEASES of gpuaas-api.`,
		"  gpuaas template set gpu-h100 --file gpu-h100.yaml --reason CHG-204\n  gpuaas template set gpu-h100-test --file - < gpu-h100.yaml",
		func(ctx context.Context, name string) error {
			if err := checkReason(c.CommandPath(), change.Reason, false); err != nil {
				return err
			}
			if err := readTemplate(e, c.CommandPath(), file, &change.Definition); err != nil {
				return err
			}
			t, err := decode[template.Template](e.api().SetTemplate(ctx, name, nil, change))
			if err != nil {
				return err
			}
			return printTemplate(e, t)
		})
	c.Flags().StringVar(&file, "file", "", "the template, in YAML or JSON; - reads it from stdin (required)")
	c.Flags().StringVar(&change.Reason, "reason", "", "reason, kept in the audit trail")
	return c
}

// readTemplate reads a template in YAML or JSON. Unknown fields are errors.
func readTemplate(e *env, command, file string, to *template.Definition) error {
	if file == "" {
		return usagef(command, "missing --file: name a file with a template, for example the output of gpuaas template show")
	}
	read := func() ([]byte, error) { return os.ReadFile(file) }
	if file == "-" {
		read = func() ([]byte, error) { return io.ReadAll(io.LimitReader(e.stdin, 1<<20)) }
	}
	document, err := read()
	if err != nil {
		return usagef(command, "reading the template: %s", err)
	}
	return decodeTemplate(command, file, document, to)
}

// decodeTemplate decodes a template. A version that YAML reads as a number is an error: 6.10 would be
// stored as 6.1.
func decodeTemplate(command, file string, document []byte, to *template.Definition) error {
	document, err := yaml.YAMLToJSONStrict(document)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(document))
		d.DisallowUnknownFields()
		err = d.Decode(to)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Type.Kind() == reflect.String {
		return usagef(command, "%s is no template: %s has a %s in place of a text: write it in quotes, such as \"6.10\"", file, wrong.Field, wrong.Value)
	}
	if err != nil {
		return usagef(command, "%s is no template: %s", file, err)
	}
	return nil
}

func printTemplate(e *env, t template.Template) error {
	return e.print(t, func(w io.Writer) {
		fields(w, "Template:", t.Name, "Version:", strconv.FormatInt(t.Version, 10), "SKUs:", strings.Join(t.SKUs, ","),
			"Classes:", strings.Join(texts(t.Classes), ","), "Policy:", string(t.Policy), "Managed:", strings.Join(t.Managed, ","))
		for _, name := range slices.Sorted(maps.Keys(t.Artifacts)) {
			row(w, "  "+name, t.Artifacts[name])
		}
	}, t.Name)
}

func newTemplateDelete(e *env) *cobra.Command {
	var d template.Deletion
	var yes bool
	c := e.command("delete TEMPLATE", "Delete a template",
		`Deletes a template. The nodes of its SKUs and classes have no template afterwards, and their
drift ends. Operations that its policy started continue. The command requires the role admin.`,
		"  gpuaas template delete gpu-h100 --yes --reason \"end of life\"",
		func(ctx context.Context, name string) error {
			if err := e.confirm(ctx, "gpuaas template delete", "delete template "+name+": its nodes are not compared with anything afterwards", yes); err != nil {
				return err
			}
			t, err := decode[template.Template](e.api().DeleteTemplate(ctx, name, nil, d))
			if err != nil {
				return err
			}
			e.message("template %s is deleted", t.Name)
			return printTemplate(e, t)
		})
	addYes(c, &yes)
	c.Flags().StringVar(&d.Reason, "reason", "", "reason, kept in the audit trail")
	return c
}
