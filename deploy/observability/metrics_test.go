package observability

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite docs/reference/metrics.md")

const (
	root   = "../.."
	client = `"github.com/prometheus/client_golang/prometheus"`
)

// A metric is one that a program declares.
type metric struct {
	name, kind, help string
	labels           []string
}

// A section of the page has the metrics that the Go files of one folder declare.
type section struct{ folder, title, text string }

func sections() []section {
	return []section{
		{"internal/daemon", "All programs", "The gauges of Vault and of the task key are of `gpuaas-api` and `gpuaas-worker`; HTTP requests are those of the\nlisteners of `gpuaas-api`."},
		{"api/metrics", "gpuaas-api", ""},
		{"internal/postgres", "Connection pools of gpuaas-api and gpuaas-worker", ""},
		{"worker", "gpuaas-worker", ""},
		{"internal/clusteragent", "gpuaas-cluster-agent", "Only the leader has series of nodes."},
	}
}

// TestMetricsPage compares docs/reference/metrics.md with the source. -update rewrites the page.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	found := declared(t)
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Generated from the source code. Run ./task gen. -->\n\n" +
		"`gpuaas-api`, `gpuaas-worker` and `gpuaas-cluster-agent` serve their metrics in the format of Prometheus at `/metrics` of\n`GPUAAS_METRICS_ADDR`." +
		" They also publish those of the Go runtime (`go_`) and of the process (`process_`), and `gpuaas-api` and\n`gpuaas-worker` those of [Temporal's SDK](https://docs.temporal.io/references/sdk-metrics) (`temporal_`).\n\n" +
		"Gauges about the fleet are published by one of the API replicas, the leader, and by none while the database does not respond. When\n" +
		"the leader changes, two replicas may publish them for a moment: aggregate with `max by`, not with `sum`. No metric but those of\n`gpuaas-cluster-agent` has a node as label.\n\n" +
		"[deploy/observability](../../deploy/observability) has alert rules and Grafana dashboards for these metrics.\n")
	for _, s := range sections() {
		b.WriteString("\n## " + s.title + "\n\n")
		if s.text != "" {
			b.WriteString(s.text + "\n\n")
		}
		b.WriteString("| metric | type | labels | description |\n| --- | --- | --- | --- |\n")
		for _, m := range found[s.folder] {
			labels := ""
			if len(m.labels) > 0 {
				labels = "`" + strings.Join(m.labels, "`, `") + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labels, m.help)
		}
	}
	page := filepath.Join(root, "docs", "reference", "metrics.md")
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o644))
	}
	old, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(old), "%s is not up to date: run ./task gen", page)
}

// declared returns the metrics that the source declares, by folder and sorted by name.
func declared(t *testing.T) map[string][]metric {
	t.Helper()
	found := map[string][]metric{}
	skip := []string{"testdata", "bin", "bench", "tools"}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains(skip, d.Name())) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		listed := slices.ContainsFunc(sections(), func(s section) bool { return s.folder == folder })
		if listed || slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == client }) {
			metrics := ofFile(t, file)
			found[folder] = append(found[folder], metrics...)
			requireAll(t, path, file, metrics)
		}
		return nil
	}))
	for folder, metrics := range found {
		if len(metrics) == 0 {
			delete(found, folder)
			continue
		}
		require.True(t, slices.ContainsFunc(sections(), func(s section) bool { return s.folder == folder }), "%s declares metrics and has no section", folder)
		slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	}
	require.Len(t, found, len(sections()))
	return found
}

// prefixes are those of the helpers of a package that add one to each name.
func prefixes() map[string]string { return map[string]string{"clusteragent": "civo_node_agent_"} }

// ofFile returns the metrics that the calls of a file declare: with an Opts structure that has a Name,
// or with a name and a help text as the first arguments of a helper or of NewDesc.
func ofFile(t *testing.T, file *ast.File) (metrics []metric) {
	t.Helper()
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		var m metric
		rest := call.Args[1:]
		if opts, ok := call.Args[0].(*ast.CompositeLit); ok {
			m = ofOpts(opts)
		} else if len(call.Args) > 1 {
			m.name, m.help = literal(call.Args[0]), literal(call.Args[1])
			helper, local := call.Fun.(*ast.Ident)
			if prefix := prefixes()[file.Name.Name]; prefix != "" && local && slices.Contains([]string{"counter", "gauge"}, helper.Name) && m.name != "" {
				m.name = prefix + m.name
			}
			rest = call.Args[2:]
		}
		if !isMetric(m.name) || m.help == "" {
			return true
		}
		for _, a := range rest {
			if label := literal(a); label != "" {
				m.labels = append(m.labels, label)
			}
			if list, ok := a.(*ast.CompositeLit); ok {
				for _, e := range list.Elts {
					m.labels = append(m.labels, literal(e))
				}
			}
		}
		if m.kind == "" {
			m.kind = "gauge"
			if strings.HasSuffix(m.name, "_total") {
				m.kind = "counter"
			}
		}
		require.Equal(t, m.kind == "counter", strings.HasSuffix(m.name, "_total"), "%s is a %s", m.name, m.kind)
		metrics = append(metrics, m)
		return true
	})
	return metrics
}

// ofOpts returns the metric of a prometheus.CounterOpts, GaugeOpts or HistogramOpts.
func ofOpts(opts *ast.CompositeLit) (m metric) {
	if typ, ok := opts.Type.(*ast.SelectorExpr); ok {
		m.kind = strings.ToLower(strings.TrimSuffix(typ.Sel.Name, "Opts"))
	}
	for _, e := range opts.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := field.Key.(*ast.Ident)
		if !ok {
			continue
		}
		switch key.Name {
		case "Name":
			m.name = literal(field.Value)
		case "Help":
			m.help = literal(field.Value)
		case "ConstLabels":
			if labels, ok := field.Value.(*ast.CompositeLit); ok {
				for _, l := range labels.Elts {
					m.labels = append(m.labels, literal(l.(*ast.KeyValueExpr).Key))
				}
			}
		}
	}
	return m
}

// requireAll fails if a file has the name of a metric that was not found.
func requireAll(t *testing.T, path string, file *ast.File, metrics []metric) {
	t.Helper()
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && isMetric(literal(lit)) {
			require.True(t, slices.ContainsFunc(metrics, func(m metric) bool { return m.name == literal(lit) }), "%s: %s", path, lit.Value)
		}
		return true
	})
}

func isMetric(name string) bool {
	return regexp.MustCompile(`^(gpuaas|civo_node_agent)_[a-z_]+[a-z]$`).MatchString(name)
}

// literal returns the value of a string literal, and "" for any other expression.
func literal(x ast.Expr) string {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	value, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return value
}

// published returns the labels of each series that a scrape of the programs returns, by name: those
// that the source declares, and those of the libraries that dashboards use.
func published(t *testing.T) map[string][]string {
	t.Helper()
	series := map[string][]string{"up": nil, "go_goroutines": nil, "process_resident_memory_bytes": nil,
		"process_cpu_seconds_total": nil, "process_open_fds": nil, "process_max_fds": nil}
	add := func(m metric) {
		if m.kind != "histogram" {
			series[m.name] = m.labels
			return
		}
		series[m.name+"_bucket"] = append(slices.Clone(m.labels), "le")
		series[m.name+"_sum"], series[m.name+"_count"] = m.labels, m.labels
	}
	for _, metrics := range declared(t) {
		for _, m := range metrics {
			add(m)
		}
	}
	for _, m := range sdkMetrics() {
		add(m)
	}
	return series
}

// sdkMetrics returns those metrics of Temporal's SDK that dashboards use. TestMetricNames of test/e2e
// looks for those of them that every worker publishes.
func sdkMetrics() []metric {
	base := []string{"namespace", "client_name", "worker_type", "workflow_type", "activity_type", "task_queue"}
	with := func(labels ...string) []string { return slices.Concat(base, labels) }
	return []metric{
		{"temporal_workflow_task_schedule_to_start_latency_seconds", "histogram", "", base},
		{"temporal_activity_schedule_to_start_latency_seconds", "histogram", "", base},
		{"temporal_worker_task_slots_available", "gauge", "", base},
		{"temporal_workflow_task_execution_failed_total", "counter", "", with("failure_reason")},
		{"temporal_activity_execution_failed_total", "counter", "", with("failure_reason")},
		{"temporal_request_failure_total", "counter", "", with("operation", "status_code")},
		{"temporal_request_latency_seconds", "histogram", "", with("operation")},
	}
}

// TestDeclared checks the kinds of declarations.
func TestDeclared(t *testing.T) {
	t.Parallel()
	const text = `package x
func f() {
	promauto.With(r).NewGauge(prometheus.GaugeOpts{Name: "gpuaas_info", Help: "Info.", ConstLabels: prometheus.Labels{"version": v}}).Set(1)
	g := f.NewHistogramVec(prometheus.HistogramOpts{Name: "gpuaas_took_seconds", Help: "Took.", Buckets: []float64{1}}, []string{"op"})
	counters("gpuaas_ends_total", "Ends.", "action", "outcome")
	c.gauge("gpuaas_age", "Age.")(1)
	prometheus.NewDesc("gpuaas_pool", "Pool.", []string{"pool"}, nil)
	log("gpuaas_age", 1)
}`
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", text, parser.SkipObjectResolution)
	require.NoError(t, err)
	got := map[string]metric{}
	for _, m := range ofFile(t, file) {
		got[m.name] = m
	}
	require.Equal(t, []string{"gpuaas_age", "gpuaas_ends_total", "gpuaas_info", "gpuaas_pool", "gpuaas_took_seconds"}, slices.Sorted(maps.Keys(got)))
	require.Equal(t, metric{"gpuaas_info", "gauge", "Info.", []string{"version"}}, got["gpuaas_info"])
	require.Equal(t, metric{"gpuaas_took_seconds", "histogram", "Took.", []string{"op"}}, got["gpuaas_took_seconds"])
	require.Equal(t, metric{"gpuaas_ends_total", "counter", "Ends.", []string{"action", "outcome"}}, got["gpuaas_ends_total"])
	require.Equal(t, metric{"gpuaas_pool", "gauge", "Pool.", []string{"pool"}}, got["gpuaas_pool"])
}
