package observability

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/stuck"
)

// The parts of a dashboard that the tests read.
type (
	dashboard struct {
		UID           string  `json:"uid"`
		Title         string  `json:"title"`
		Description   string  `json:"description"`
		SchemaVersion int     `json:"schemaVersion"`
		Panels        []panel `json:"panels"`
		Templating    struct {
			List []struct {
				Name       string      `json:"name"`
				Type       string      `json:"type"`
				Definition string      `json:"definition"`
				Datasource *datasource `json:"datasource"`
			} `json:"list"`
		} `json:"templating"`
	}
	datasource struct {
		Type string `json:"type"`
		UID  string `json:"uid"`
	}
	panel struct {
		ID          int         `json:"id"`
		Type        string      `json:"type"`
		Title       string      `json:"title"`
		Description string      `json:"description"`
		Datasource  *datasource `json:"datasource"`
		GridPos     struct{ X, Y, W, H int }
		FieldConfig struct {
			Defaults struct {
				Unit    string `json:"unit"`
				NoValue string `json:"noValue"`
				Custom  struct {
					SpanNulls bool `json:"spanNulls"`
				} `json:"custom"`
			} `json:"defaults"`
		} `json:"fieldConfig"`
		Targets []struct {
			Expr         string      `json:"expr"`
			LegendFormat string      `json:"legendFormat"`
			Datasource   *datasource `json:"datasource"`
		} `json:"targets"`
	}
)

// dashboards reads all dashboards by the name of their file.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("dashboards/*.json")
	require.NoError(t, err)
	boards := map[string]dashboard{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		var d dashboard
		require.NoError(t, json.NewDecoder(bytes.NewReader(raw)).Decode(&d), file)
		boards[filepath.Base(file)] = d
	}
	require.Len(t, boards, 3)
	return boards
}

// TestDashboards: each dashboard has a UID of its own and works with any data source; each panel
// has a unit and says what to do, and shows absent data as such.
func TestDashboards(t *testing.T) {
	t.Parallel()
	uids := map[string]string{}
	for file, d := range dashboards(t) {
		assert.Regexp(t, `^gpuaas-[a-z-]+$`, d.UID)
		assert.Empty(t, uids[d.UID], "%s and %s have one UID", file, uids[d.UID])
		uids[d.UID] = file
		assert.NotEmpty(t, d.Title, file)
		assert.NotEmpty(t, d.Description, file)
		assert.GreaterOrEqual(t, d.SchemaVersion, 39, "%s", file)
		require.NotEmpty(t, d.Templating.List, file)
		assert.Equal(t, "datasource", d.Templating.List[0].Type, file)
		ids := map[int]bool{}
		for i, p := range d.Panels {
			name := file + ": " + p.Title
			assert.NotEmpty(t, p.Title, "%s: panel %d", file, i)
			assert.False(t, ids[p.ID], name)
			ids[p.ID] = true
			assert.False(t, slices.ContainsFunc(d.Panels[:i], func(o panel) bool { return overlap(p, o) }), name)
			if p.Type == "row" {
				continue
			}
			assert.NotEmpty(t, p.FieldConfig.Defaults.Unit, name)
			assert.Equal(t, "no data", p.FieldConfig.Defaults.NoValue, name)
			assert.False(t, p.FieldConfig.Defaults.Custom.SpanNulls, name)
			assert.Greater(t, len(strings.Fields(p.Description)), 4, name)
			assert.NotEmpty(t, p.Targets, name)
			assert.Equal(t, &datasource{"prometheus", "${datasource}"}, p.Datasource, name)
			for _, target := range p.Targets {
				assert.Equal(t, p.Datasource, target.Datasource, name)
			}
		}
	}
}

func overlap(a, b panel) bool {
	g, o := a.GridPos, b.GridPos
	return g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H
}

// TestDashboardCommands: each command that a description names exists.
func TestDashboardCommands(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root, "docs", "reference", "gpuaas.md"))
	require.NoError(t, err)
	command := regexp.MustCompile("`(gpuaas(?: [a-z][a-z-]*)+)")
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, m := range command.FindAllStringSubmatch(p.Description, -1) {
				assert.Contains(t, string(raw), "\n## "+m[1]+"\n", "%s: %s", file, p.Title)
			}
		}
	}
}

// TestNames: each metric and each label of the dashboards and of the alert rules is one of the
// programs.
func TestNames(t *testing.T) {
	t.Parallel()
	series := published(t)
	for file, d := range dashboards(t) {
		for _, v := range d.Templating.List {
			if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition); v.Type == "query" && assert.NotNil(t, m, file) {
				assert.Empty(t, unknownNames(fmt.Sprintf("sum by (%s) (%s)", m[2], m[1]), "", series), file)
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				assert.Empty(t, unknownNames(target.Expr, target.LegendFormat, series), "%s: %s", file, p.Title)
			}
		}
	}
	for _, a := range stuck.Alerts() {
		assert.Empty(t, unknownNames(a.Expr, "", series), a.Name)
	}
}

var (
	metricUse = regexp.MustCompile(`\b((?:gpuaas|civo_node_agent|temporal|process|go)_[a-z_]+|up)\b(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	legend    = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	// quotedText is a value, which may look like a metric.
	quotedText = regexp.MustCompile(`"[^"]*"`)
)

// unknownNames lists the metrics of an expression that no program publishes, and the labels in
// matchers, groupings and the legend that the metrics do not have.
func unknownNames(expr, legendFormat string, series map[string][]string) (unknown []string) {
	expr = quotedText.ReplaceAllString(expr, `"v"`)
	all := []string{"instance", "job"}
	for _, m := range metricUse.FindAllStringSubmatch(expr, -1) {
		labels, ok := series[m[1]]
		if !ok {
			unknown = append(unknown, m[1])
			continue
		}
		labels = append(slices.Clone(labels), "instance", "job")
		all = append(all, labels...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				unknown = append(unknown, m[1]+"{"+l[1]+"}")
			}
		}
	}
	var used []string
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(g[1], ",") {
			used = append(used, strings.TrimSpace(l))
		}
	}
	for _, l := range legend.FindAllStringSubmatch(legendFormat, -1) {
		used = append(used, l[1])
	}
	for _, l := range used {
		if !slices.Contains(all, l) {
			unknown = append(unknown, "label "+l)
		}
	}
	return unknown
}

func TestUnknownNamesReports(t *testing.T) {
	t.Parallel()
	series := map[string][]string{"gpuaas_nodes": {"state"}, "gpuaas_took_seconds_bucket": {"op", "le"}}
	require.Empty(t, unknownNames(`histogram_quantile(0.5, sum by (le, op) (rate(gpuaas_took_seconds_bucket{op=~"$op"}[5m])))`, "{{op}}", series))
	require.Empty(t, unknownNames(`max by (instance) (gpuaas_nodes{state!="gpuaas_x"})`, "{{instance}}", series))
	require.Equal(t, []string{"gpuaas_boxes"}, unknownNames("sum(gpuaas_boxes)", "", series))
	require.Equal(t, []string{"gpuaas_nodes{sku}"}, unknownNames(`gpuaas_nodes{sku="a"}`, "", series))
	require.Equal(t, []string{"label sku", "label region"}, unknownNames("sum by (state, sku) (gpuaas_nodes)", "{{region}}", series))
}

// TestGaugesOfTheFleet: only one replica publishes these gauges, and two while the leader changes,
// so that a sum over replicas would count a node twice.
func TestGaugesOfTheFleet(t *testing.T) {
	t.Parallel()
	fleet := map[string]bool{}
	for _, m := range declared(t)["api/metrics"] {
		if m.kind == "gauge" {
			fleet[m.name] = true
		}
	}
	for _, own := range []string{"gpuaas_waiting_agents", "gpuaas_lease_key_ok", "gpuaas_admin_tokens_ok", "gpuaas_issue_budget_left"} {
		require.True(t, fleet[own], own)
		delete(fleet, own)
	}
	require.NotEmpty(t, slices.Collect(maps.Keys(fleet)))
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				for _, m := range metricUse.FindAllStringSubmatchIndex(target.Expr, -1) {
					name := target.Expr[m[2]:m[3]]
					if fleet[name] && name != "gpuaas_nodes" || fleet[name] && !strings.Contains(target.Expr, "count by (instance)") {
						assert.Regexp(t, `(max|min)( by \([a-z, ]+\))? \($|(max|min)\($`, target.Expr[:m[0]], "%s: %s", file, p.Title)
					}
				}
			}
		}
	}
}
