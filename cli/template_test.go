package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/template"
)

func someTemplates() []template.Template {
	return []template.Template{
		{Name: "gpu-h100", Version: 4, UpdatedAt: start().Add(-time.Hour), UpdatedBy: "ada@ops", Definition: template.Definition{SKUs: []string{"h100"},
			Artifacts: map[string]string{"agent": "v1.4.0", "kernel": "6.8.0-90-generic", "verifier_set": "newest"}, Managed: []string{"module/*"}, Policy: template.PolicyProceed}},
		{Name: "spot", Version: 1, UpdatedAt: start().Add(-time.Minute), UpdatedBy: "ada@ops", Definition: template.Definition{Classes: []inventory.Class{inventory.ClassSpot},
			Artifacts: map[string]string{"kernel": "6.8.0-90-generic"}, Policy: template.PolicyNotify}},
	}
}

// someDrift is the drift of gpu-17, with a report that tries to forge lines.
func someDrift() template.Report {
	return template.Report{NodeID: nodeID, Host: "gpu-17", Template: "gpu-h100", Version: 4, Policy: template.PolicyProceed, Status: template.StatusDrifted, Drifted: true,
		Since: at(-time.Hour), ReportedAt: at(-time.Minute), Upgrade: "v1.4.0",
		Drift: template.Drift{
			Attach: []template.Difference{{Name: "gpu_driver", Declared: "570", Next: "gpuaas node drain gpu-17, then install gpu_driver 570 on it"}},
			Detach: []template.Difference{{Name: "module/x", Reported: "1\x1b[2J", Next: "remove module/x from gpu-17, or declare it in the template"}},
			Update: []template.Difference{{Name: "agent", Declared: "v1.4.0", Reported: "v1.3.0\nStatus: in_sync", Next: "gpuaas node upgrade-agent gpu-17 --version v1.4.0"}}},
		Remedy: operationID, RemedyRefused: "the node is drained"}
}

func (a *fakeAPI) serveTemplates(mux *http.ServeMux) {
	a.templates, a.drift = someTemplates(), template.Report{Host: "gpu-17", Status: template.StatusNoTemplate}
	a.fleetDrift = template.Fleet{Nodes: 12, Counts: []template.Count{
		{Template: "gpu-h100", Version: 4, Change: "update", Name: "kernel", Declared: "6.8", Reported: "6.7\x1b[2J", Nodes: 11},
		{Template: "gpu-h100", Version: 4, Change: "attach", Name: "gpu_driver", Declared: "570", Nodes: 1}}}
	mux.HandleFunc("GET /api/v1/admin/templates", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, http.StatusOK, template.List{Templates: a.templates})
	})
	mux.HandleFunc("GET /api/v1/admin/templates/{template}", func(w http.ResponseWriter, r *http.Request) {
		if t := a.findTemplate(w, r); t != nil {
			a.answer(w, http.StatusOK, *t)
		}
	})
	mux.HandleFunc("PUT /api/v1/admin/templates/{template}", func(w http.ResponseWriter, r *http.Request) {
		var c template.Change
		if !a.read(w, r, &c) {
			return
		}
		if err := c.Check(); err != nil {
			a.fail(w, schema.AsError(err))
			return
		}
		a.decided = append(a.decided, fmt.Sprintf("set %s %v %v %s", r.PathValue("template"), c.SKUs, c.Artifacts, c.Reason))
		a.answer(w, http.StatusOK, template.Template{Name: r.PathValue("template"), Version: 5, Definition: c.Definition, UpdatedAt: start(), UpdatedBy: "ada@ops"})
	})
	mux.HandleFunc("POST /api/v1/admin/templates/{template}/delete", func(w http.ResponseWriter, r *http.Request) {
		var d template.Deletion
		if t := a.findTemplate(w, r); t != nil && a.read(w, r, &d) {
			a.decided = append(a.decided, "delete "+t.Name+" "+d.Reason)
			a.answer(w, http.StatusOK, *t)
		}
	})
	mux.HandleFunc("GET /api/v1/admin/drift", func(w http.ResponseWriter, _ *http.Request) { a.answer(w, http.StatusOK, a.fleetDrift) })
	mux.HandleFunc("GET /api/v1/admin/nodes/{node}/drift", func(w http.ResponseWriter, r *http.Request) {
		if a.find(w, r) != nil {
			a.answer(w, http.StatusOK, a.drift)
		}
	})
}

func (a *fakeAPI) findTemplate(w http.ResponseWriter, r *http.Request) *template.Template {
	name := r.PathValue("template")
	i := slices.IndexFunc(a.templates, func(t template.Template) bool { return t.Name == name })
	if i < 0 {
		a.fail(w, schema.NewError(schema.KindNotFound, "no template %q", name).WithNext("gpuaas template list"))
		return nil
	}
	return &a.templates[i]
}

func TestTemplate(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"list":         {"template", "list"},
		"list-wide":    {"template", "list", "-o", "wide"},
		"show":         {"template", "show", "gpu-h100"},
		"show-json":    {"template", "show", "gpu-h100", "-o", "json"},
		"show-unknown": {"template", "show", "gpu-b200"},
		"set-no-file":  {"template", "set", "gpu-h100"},
		"delete":       {"template", "delete", "spot", "--yes", "--reason", "unused"},
		"drift":        {"template", "drift"},
		"drift-json":   {"template", "drift", "-o", "json"},
		"node":         {"node", "drift", "gpu-17"},
		"node-json":    {"node", "drift", "gpu-17", "-o", "json"},
		"node-unknown": {"node", "drift", "gpu-99"},
		"node-show":    {"node", "show", "gpu-17"},
		"remediate":    {"node", "drift", "gpu-17", "--remediate", "--no-wait"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.drift = someDrift()
			h.golden("template-"+name, args...)
			require.NotContains(t, h.out.String(), "\x1b")
		})
	}
}

// Other answers: nothing to show, in sync, no template, and nothing to correct.
func TestTemplateEdges(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.templates, h.api.fleetDrift = nil, template.Fleet{Counts: []template.Count{}}
	h.golden("template-list-none", "template", "list")
	h.golden("template-drift-none", "template", "drift")
	h.api.drift = template.Report{NodeID: nodeID, Host: "gpu-17", Template: "gpu-h100", Version: 4, Policy: template.PolicyNotify, Status: template.StatusInSync}
	h.golden("template-node-in-sync", "node", "drift", "gpu-17")
	h.golden("template-remediate-nothing", "node", "drift", "gpu-17", "--remediate")
	h.api.drift = template.Report{NodeID: nodeID, Host: "gpu-17", Status: template.StatusNoTemplate, Next: "gpuaas template list"}
	h.golden("template-node-none", "node", "drift", "gpu-17")
	h.api.drift = template.Report{NodeID: nodeID, Host: "gpu-17", Template: "gpu-h100", Version: 4, Policy: template.PolicyNotify, Status: template.StatusUnknown,
		Unknown: []string{"kernel"}, Next: "gpuaas node show gpu-17"}
	h.golden("template-node-unknown-artifacts", "node", "drift", "gpu-17")
}

// The remedy is the upgrade to the declared version, with a reason that names the template.
func TestRemediate(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.drift = someDrift()
	require.Zero(t, h.run("node", "drift", "gpu-17", "--remediate", "--no-wait"), h.err.String())
	require.Len(t, h.temporal.submitted, 1)
	in := h.temporal.submitted[0]
	require.Equal(t, "upgrade-agent v1.4.0 differs from template gpu-h100 version 4", fmt.Sprintf("%s %s %s", in.Action, in.Options.AgentVersion, in.Reason))
}

// A template is read from a file or stdin, in YAML or JSON. What show prints can be set.
func TestTemplateSet(t *testing.T) {
	t.Parallel()
	h := setup(t)
	file := filepath.Join(h.env.dir, "h100.yaml")
	require.NoError(t, os.WriteFile(file, []byte("skus: [h100]\nartifacts:\n  kernel: \"6.8\"\n"), 0o600))
	h.golden("template-set", "template", "set", "gpu-h100", "--file", file, "--reason", "CHG-204")
	require.Zero(t, h.run("template", "show", "gpu-h100"))
	h.env.stdin = strings.NewReader(h.out.String())
	require.Zero(t, h.run("template", "set", "copy", "--file", "-"), h.err.String())
	require.Equal(t, []string{"set gpu-h100 [h100] map[kernel:6.8] CHG-204",
		"set copy [h100] map[agent:v1.4.0 kernel:6.8.0-90-generic verifier_set:newest] "}, h.api.decided)
	require.NoError(t, os.WriteFile(file, []byte("artifact: {}\n"), 0o600))
	h.golden("template-set-bad", "template", "set", "gpu-h100", "--file", file)
	require.NoError(t, os.WriteFile(file, []byte("artifacts: {}\n"), 0o600))
	h.golden("template-set-refused", "template", "set", "gpu-h100", "--file", file)
}

// What YAML reads as a number is refused, in place of another version: 6.10 would be 6.1.
func TestTemplateSetNumbers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for document, want := range map[string]string{
		"artifacts: {kernel: 6.10}\n":     "artifacts has a number",
		"artifacts: {containerd: 12e3}\n": "artifacts has a number",
		"artifacts: {kernel: yes}\n":      "artifacts has a bool",
		"managed: [6.10]\n":               "managed has a number",
		"{\"artifacts\": []}\n":           "is no template: json: cannot unmarshal array",
	} {
		h.env.stdin = strings.NewReader(document)
		require.Equal(t, schema.ExitUsage, h.run("template", "set", "gpu-h100", "--file", "-"), document)
		require.Contains(t, h.err.String(), want)
	}
	require.Empty(t, h.api.decided)
}

// Options of --remediate are refused without it: they would do nothing.
func TestDriftOptions(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, option := range []string{"--no-wait", "--reason=x"} {
		require.Equal(t, schema.ExitUsage, h.run("node", "drift", "gpu-17", option))
		require.Contains(t, h.err.String(), "are for --remediate")
	}
}
