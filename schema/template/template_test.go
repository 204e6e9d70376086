package template_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/template"
)

func names(list []template.Difference) (all []string) {
	for _, x := range list {
		all = append(all, x.Name)
	}
	return all
}

func TestCompare(t *testing.T) {
	t.Parallel()
	declared := template.Definition{
		Artifacts: map[string]string{"kernel": "6.8", "gpu_driver": "570", "agent": "v1.4.0", "verifier_set": template.Newest, "containerd": "aa"},
		Managed:   []string{"module/*", "legacy"},
	}
	require.NoError(t, declared.Check())
	same := func() template.Node {
		return template.Node{Host: "gpu-17", AgentVersion: "v1.4.0", VerifierSet: 7, NewestSet: 7,
			Artifacts: map[string]string{"kernel": "6.8", "gpu_driver": "570", "containerd": "aa", "other": "1"}}
	}
	for name, c := range map[string]struct {
		change                          func(*template.Node)
		attach, detach, update, unknown []string
		text, upgrade                   string
	}{
		"in sync":             {},
		"a newer set":         {change: func(n *template.Node) { n.VerifierSet = 8 }},
		"missing":             {change: func(n *template.Node) { delete(n.Artifacts, "gpu_driver") }, attach: []string{"gpu_driver"}, text: "attach gpu_driver"},
		"managed":             {change: func(n *template.Node) { n.Artifacts["legacy"], n.Artifacts["module/x"] = "1", "2" }, detach: []string{"legacy", "module/x"}, text: "detach legacy module/x"},
		"another version":     {change: func(n *template.Node) { n.Artifacts["kernel"] = "6.9" }, update: []string{"kernel"}, text: "update kernel"},
		"an older set":        {change: func(n *template.Node) { n.VerifierSet = 6 }, update: []string{"verifier_set"}, text: "update verifier_set"},
		"an older agent":      {change: func(n *template.Node) { n.AgentVersion = "v1.3.9" }, update: []string{"agent"}, text: "update agent", upgrade: "v1.4.0"},
		"a newer agent":       {change: func(n *template.Node) { n.AgentVersion = "v1.5.0" }, update: []string{"agent"}, text: "update agent"},
		"an agent of its own": {change: func(n *template.Node) { n.AgentVersion = "dev" }, update: []string{"agent"}, text: "update agent"},
		"no report": {change: func(n *template.Node) { n.Artifacts, n.AgentVersion = nil, "v1.0.0" }, update: []string{"agent"},
			unknown: []string{"containerd", "gpu_driver", "kernel"}, text: "update agent", upgrade: "v1.4.0"},
		"no heartbeat": {change: func(n *template.Node) { *n = template.Node{Host: "gpu-17", NewestSet: 7} },
			unknown: []string{"agent", "containerd", "gpu_driver", "kernel", "verifier_set"}},
		"a forged agent": {change: func(n *template.Node) { n.Artifacts["agent"] = "v9.0.0" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := same()
			if c.change != nil {
				c.change(&n)
			}
			got, unknown := template.Compare(declared, n)
			require.Equal(t, [][]string{c.attach, c.detach, c.update, c.unknown}, [][]string{names(got.Attach), names(got.Detach), names(got.Update), unknown})
			require.Equal(t, c.text, got.String())
			require.Equal(t, c.upgrade, got.Upgrade())
			require.Equal(t, c.text != "", got.Any())
			for _, x := range append(append(got.Attach, got.Detach...), got.Update...) {
				require.NotEmpty(t, x.Next, x.Name)
			}
		})
	}
}

// What a node reports does not get into the text of a signal or into a next step.
func TestReportedVersionsStayOut(t *testing.T) {
	t.Parallel()
	d, _ := template.Compare(template.Definition{Artifacts: map[string]string{"kernel": "6.8", "agent": "v1.0.0"}, Managed: []string{"x*"}},
		template.Node{Host: "gpu-17", AgentVersion: "$(reboot)", Artifacts: map[string]string{"kernel": "`rm -rf /`", "x1": "$(reboot)"}})
	differences := slices.Concat(d.Update, d.Detach)
	require.Len(t, differences, 3)
	for _, x := range differences {
		require.NotContains(t, d.String()+x.Next, x.Reported)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	of := &template.Template{Name: "h100", Version: 3, Definition: template.Definition{Policy: template.PolicyNotify, Artifacts: map[string]string{"kernel": "6.8", "agent": "v1.4.0"}}}
	report := func(of *template.Template, n template.Node) template.Report {
		r := template.Report{Host: "gpu-17"}
		r.Describe(of, n)
		return r
	}
	require.Equal(t, template.StatusNoTemplate, report(nil, template.Node{}).Status)
	require.Equal(t, template.StatusUnknown, report(of, template.Node{AgentVersion: "v1.4.0"}).Status)
	require.Equal(t, template.StatusInSync, report(of, template.Node{AgentVersion: "v1.4.0", Artifacts: map[string]string{"kernel": "6.8"}}).Status)
	drifted := report(of, template.Node{AgentVersion: "v1.3.0", Artifacts: map[string]string{}})
	require.Equal(t, template.StatusDrifted, drifted.Status)
	require.Equal(t, "v1.4.0", drifted.Upgrade)
	text, err := json.Marshal(drifted)
	require.NoError(t, err)
	require.Contains(t, string(text), `"drift":true,"attach":[{"name":"kernel","declared":"6.8"`)
	require.Contains(t, string(text), `"update":[{"name":"agent","declared":"v1.4.0","reported":"v1.3.0"`)
	text, err = json.Marshal(report(of, template.Node{AgentVersion: "v1.4.0", Artifacts: map[string]string{"kernel": "6.8"}}))
	require.NoError(t, err)
	require.Contains(t, string(text), `"drift":false`)
}

func TestCheckDefinition(t *testing.T) {
	t.Parallel()
	good := template.Definition{SKUs: []string{"h100", "a100", "h100"}, Artifacts: map[string]string{"kernel": "6.8"}}
	require.NoError(t, good.Check())
	require.Equal(t, []string{"a100", "h100"}, good.SKUs)
	require.Equal(t, template.PolicyNotify, good.Policy)
	many := map[string]string{}
	for i := range inventory.MaxArtifacts + 1 {
		many[fmt.Sprint("a", i)] = "1"
	}
	for reason, list := range map[string][]template.Definition{
		"bad_artifacts": {{}, {Artifacts: many}, {Artifacts: map[string]string{"a b": "1"}}, {Artifacts: map[string]string{"a": ""}},
			{Artifacts: map[string]string{"a": "x\n"}}, {Artifacts: map[string]string{"verifier_set": "7"}}},
		"bad_skus":    {{Artifacts: good.Artifacts, SKUs: []string{"a b"}}},
		"bad_classes": {{Artifacts: good.Artifacts, Classes: []inventory.Class{"cheap"}}},
		"bad_managed": {{Artifacts: good.Artifacts, Managed: []string{"*"}}, {Artifacts: good.Artifacts, Managed: []string{"a**"}}},
		"bad_policy":  {{Artifacts: good.Artifacts, Policy: "always"}, {Artifacts: good.Artifacts, Policy: template.PolicyProceed}},
	} {
		for _, d := range list {
			e := schema.AsError(d.Check())
			require.NotNil(t, e, "%+v", d)
			require.Equal(t, reason, e.Reason, "%+v", d)
		}
	}
	for _, bad := range []string{"", "-a", ".a", "a b", "a/b", strings.Repeat("a", 65)} {
		require.False(t, template.ValidName(bad), bad)
	}
	require.True(t, template.ValidName("gpu-h100.v2"))
}
