package helm

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/testkit/helmtest"
)

// stopGrace is how long goroutines of a process may take to end after the drain timeout (internal/daemon).
const stopGrace = 3 * time.Second

// chart is the chart with its tests.
type chart struct{ helmtest.Helm }

func TestChart(t *testing.T) {
	t.Parallel()
	c := chart{helmtest.New(t, filepath.Join("..", ".."))}
	for name, values := range map[string][]string{
		"required values": c.Required(),
		"all options":     c.All(),
		"API key":         append(c.Required(), "--set", "temporal.credential=apiKey"),
		"no policies":     append(c.Required(), "--set", "networkPolicy.enabled=false,trustWorker.replicas=0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := c.Run(t, append([]string{"lint", "--strict", c.Chart}, values...)...)
			require.NoError(t, err, out)
			check(t, c.render(t, values))
		})
	}
	t.Run("objects", c.objects)
	t.Run("unknown values", c.unknownValues)
	t.Run("rejected values", c.rejectedValues)
	t.Run("alert rules", c.alertRules)
}

// An object is any object of the Kubernetes API, with the parts that these tests read.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Spec spec
	text []byte
}

type spec struct {
	Replicas *int
	Selector any // of a Service: labels; else a label selector
	Template struct {
		Metadata struct{ Labels map[string]string }
		Spec     podSpec
	}
	Ports []struct {
		Port       int
		TargetPort string
	}
	ScaleTargetRef struct{ Name string }
}

type podSpec struct {
	ServiceAccountName            string
	AutomountServiceAccountToken  *bool
	TerminationGracePeriodSeconds int
	SecurityContext               struct {
		RunAsNonRoot   bool
		SeccompProfile struct{ Type string }
	}
	TopologySpreadConstraints []any
	Containers                []container
	Volumes                   []struct{ Name string }
}

type probe struct {
	HTTPGet struct{ Path, Port string }
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name, Value string
		ValueFrom   any
	}
	Ports []struct {
		Name          string
		ContainerPort int
	}
	LivenessProbe, ReadinessProbe probe
	Resources                     struct{ Requests, Limits map[string]string }
	SecurityContext               struct {
		AllowPrivilegeEscalation, Privileged *bool
		ReadOnlyRootFilesystem               bool
		Capabilities                         struct{ Drop, Add []string }
	}
	VolumeMounts []struct{ Name, MountPath string }
}

// env returns the variables by name. All of them have literal values.
func (c container) env(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, e := range c.Env {
		assert.Nil(t, e.ValueFrom, "%s: secrets are mounted as files", e.Name)
		assert.NotContains(t, all, e.Name, "set twice")
		all[e.Name] = e.Value
	}
	return all
}

func (c chart) render(t *testing.T, values []string) (all []object) {
	t.Helper()
	for _, text := range c.Render(t, "gpuaas", values...) {
		o := object{text: []byte(text)}
		require.NoError(t, yaml.Unmarshal([]byte(text), &o), text)
		all = append(all, o)
	}
	return all
}

// check checks what holds for all values.
func check(t *testing.T, all []object) {
	t.Helper()
	require.NotEmpty(t, all)
	accounts, pods := map[string]bool{}, map[string]map[string]string{}
	for _, o := range all {
		if o.Kind == "ServiceAccount" {
			accounts[o.Metadata.Name] = true
		}
		if o.Kind == "Deployment" {
			pods[o.Metadata.Name] = o.Spec.Template.Metadata.Labels
		}
	}
	for _, o := range all {
		name := o.Kind + " " + o.Metadata.Name
		assert.Equal(t, "gpuaas", o.Metadata.Namespace, name)
		assert.NotContains(t, []string{"Secret", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}, o.Kind, name)
		assert.NotRegexp(t, `postgres(ql)?://|hvs\.|-----BEGIN`, string(o.text), "%s has a secret", name)
		switch o.Kind {
		case "Deployment":
			assert.True(t, accounts[o.Spec.Template.Spec.ServiceAccountName], name)
			assert.Equal(t, map[string]any{"matchLabels": labels(pods[o.Metadata.Name])}, o.Spec.Selector, name)
			checkPod(t, name, o.Spec.Template.Spec)
		case "Service":
			assert.True(t, slices.ContainsFunc(slices.Collect(maps.Values(pods)), func(pod map[string]string) bool {
				return selects(o.Spec.Selector, pod)
			}), "%s selects no pod", name)
		case "PodDisruptionBudget":
			assert.Equal(t, map[string]any{"matchLabels": labels(pods[o.Metadata.Name])}, o.Spec.Selector, name)
		case "HorizontalPodAutoscaler":
			assert.Contains(t, pods, o.Spec.ScaleTargetRef.Name, name)
		}
	}
}

func labels(set map[string]string) map[string]any {
	all := map[string]any{}
	for name, value := range set {
		all[name] = value
	}
	return all
}

// selects reports whether the selector of a Service selects pods with the labels.
func selects(selector any, pod map[string]string) bool {
	want, ok := selector.(map[string]any)
	for name, value := range want {
		ok = ok && pod[name] == value
	}
	return ok && len(want) > 0
}

// checkPod checks the pods of a Deployment.
func checkPod(t *testing.T, name string, pod podSpec) {
	t.Helper()
	require.Len(t, pod.Containers, 1, name)
	assert.True(t, pod.SecurityContext.RunAsNonRoot, name)
	assert.Equal(t, "RuntimeDefault", pod.SecurityContext.SeccompProfile.Type, name)
	no := false
	assert.Equal(t, &no, pod.AutomountServiceAccountToken, name)
	assert.NotEmpty(t, pod.TopologySpreadConstraints, name)
	c := pod.Containers[0]
	env, page := c.env(t), referencePage(t, "gpuaas-"+c.Name)

	assert.Equal(t, probe{struct{ Path, Port string }{"/livez", "metrics"}}, c.LivenessProbe, name)
	assert.Equal(t, probe{struct{ Path, Port string }{"/readyz", "metrics"}}, c.ReadinessProbe, name)
	for _, port := range c.Ports {
		variable := map[string]string{"metrics": "GPUAAS_METRICS_ADDR", "node": "GPUAAS_NODE_ADDR", "admin": "GPUAAS_ADMIN_ADDR"}[port.Name]
		assert.Equal(t, fmt.Sprintf(":%d", port.ContainerPort), env[variable], "%s: port %s", name, port.Name)
		assert.Contains(t, page[variable], fmt.Sprintf(":%d", port.ContainerPort), "%s: port %s is not the default of the program", name, port.Name)
	}

	var limit int
	_, err := fmt.Sscanf(c.Resources.Limits["memory"], "%dMi", &limit)
	require.NoError(t, err, name)
	assert.NotEmpty(t, c.Resources.Requests["cpu"], name)
	assert.Equal(t, c.Resources.Limits["memory"], c.Resources.Requests["memory"], name)
	assert.Equal(t, fmt.Sprintf("%dMiB", limit*9/10), env["GOMEMLIMIT"], name)

	assert.Equal(t, &no, c.SecurityContext.AllowPrivilegeEscalation, name)
	assert.Nil(t, c.SecurityContext.Privileged, name)
	assert.True(t, c.SecurityContext.ReadOnlyRootFilesystem, name)
	assert.Equal(t, []string{"ALL"}, c.SecurityContext.Capabilities.Drop, name)
	assert.Empty(t, c.SecurityContext.Capabilities.Add, name)

	duration := func(variable string) time.Duration {
		d, err := time.ParseDuration(page[variable])
		require.NoError(t, err, variable)
		return d
	}
	assert.Greater(t, time.Duration(pod.TerminationGracePeriodSeconds)*time.Second,
		duration("GPUAAS_LAME_DUCK")+duration("GPUAAS_DRAIN_TIMEOUT")+stopGrace, name)
	checkVariables(t, name, c, env, page)
}

// checkVariables checks that the program has each variable, and that each file that a variable names is in a volume.
func checkVariables(t *testing.T, name string, c container, env, page map[string]string) {
	t.Helper()
	for variable, value := range env {
		if variable != "GOMEMLIMIT" && variable != "SSL_CERT_DIR" { // of Go's runtime and library
			assert.Contains(t, page, variable, name)
		}
		assert.NotEmpty(t, value, "%s: %s", name, variable)
		if strings.HasPrefix(value, "/") {
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m struct{ Name, MountPath string }) bool {
				return value == m.MountPath || strings.HasPrefix(value, m.MountPath+"/")
			})
			assert.True(t, mounted, "%s: %s=%s is in no volume", name, variable, value)
		}
	}
}

// referencePage returns the variables of a program, with their defaults.
func referencePage(t *testing.T, program string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", program+".md"))
	require.NoError(t, err)
	all := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[A-Z].*?) \\| (.*?) \\|").FindAllStringSubmatch(string(text), -1) {
		for variable := range strings.SplitSeq(row[1], ", ") {
			all[strings.Trim(variable, "`")] = strings.Trim(row[2], "`")
		}
	}
	require.NotEmpty(t, all)
	return all
}

// objects checks which objects there are.
func (c chart) objects(t *testing.T) {
	t.Parallel()
	names := func(all []object) (found []string) {
		for _, o := range all {
			found = append(found, o.Kind+"/"+o.Metadata.Name)
		}
		slices.Sort(found)
		return found
	}
	always := []string{
		"Deployment/gpuaas-admin-api", "Deployment/gpuaas-node-api", "Deployment/gpuaas-trust-worker", "Deployment/gpuaas-worker",
		"NetworkPolicy/gpuaas", "NetworkPolicy/gpuaas-node-api",
		"PodDisruptionBudget/gpuaas-admin-api", "PodDisruptionBudget/gpuaas-node-api", "PodDisruptionBudget/gpuaas-worker",
		"Service/gpuaas-admin-api", "Service/gpuaas-node-api",
		"ServiceAccount/gpuaas-api", "ServiceAccount/gpuaas-trust", "ServiceAccount/gpuaas-worker",
	}
	required := c.render(t, c.Required())
	assert.Equal(t, always, names(required))
	assert.ElementsMatch(t, append(slices.Clone(always), "HorizontalPodAutoscaler/gpuaas-worker", "NetworkPolicy/gpuaas-admin-api",
		"NetworkPolicy/gpuaas-metrics", "PrometheusRule/gpuaas", "Service/gpuaas-metrics", "ServiceMonitor/gpuaas"),
		names(c.render(t, c.All())))

	for _, o := range required {
		if o.Kind == "Deployment" && o.Metadata.Name != "gpuaas-trust-worker" {
			assert.Equal(t, 2, *o.Spec.Replicas, o.Metadata.Name)
		}
		if o.Kind == "Service" && o.Metadata.Name == "gpuaas-node-api" {
			assert.Equal(t, "node", o.Spec.Ports[0].TargetPort)
			assert.NotContains(t, string(o.text), "annotations:", "nothing in front of the node API ends TLS")
		}
	}
}

// freeForm are the values whose keys the operator chooses.
func freeForm() []string {
	return []string{"settings", "annotations", "labels", "nodeSelector"}
}

// unknownValues: the schema rejects an unknown key of each object of values.yaml.
func (c chart) unknownValues(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(c.Chart, "values.yaml"))
	require.NoError(t, err)
	var values map[string]any
	require.NoError(t, yaml.UnmarshalStrict(text, &values))
	var paths []string
	var walk func(prefix string, o map[string]any)
	walk = func(prefix string, o map[string]any) {
		paths = append(paths, prefix+"unknown")
		for key, value := range o {
			if inner, ok := value.(map[string]any); ok && !slices.Contains(freeForm(), key) {
				walk(prefix+key+".", inner)
			}
		}
	}
	walk("", values)
	require.Greater(t, len(paths), 10)
	for _, path := range paths {
		out, err := c.Run(t, append([]string{"template", c.Chart, "--set", path + "=1"}, c.Required()...)...)
		require.Error(t, err, path)
		assert.Contains(t, out, "unknown", path)
	}
	out, err := c.Run(t, "template", c.Chart)
	require.Error(t, err, "values that are required have no default")
	assert.Contains(t, out, "values don't meet the specifications of the schema")
}

// rejectedValues: secrets cannot be settings, and a setting cannot replace a variable of the chart.
func (c chart) rejectedValues(t *testing.T) {
	t.Parallel()
	rejected := func(value, want string) {
		out, err := c.Run(t, append([]string{"template", c.Chart, "--set-string", value}, c.Required()...)...)
		require.Error(t, err, value)
		assert.Contains(t, out, want, value)
	}
	secrets := 0
	for _, program := range []string{"gpuaas-api", "gpuaas-worker"} {
		page := referencePage(t, program)
		for variable := range page {
			if _, file := page[variable+"_FILE"]; file {
				secrets++
				rejected("settings."+variable+"=x", "invalid propertyName '"+variable+"'")
			}
		}
	}
	assert.Greater(t, secrets, 3)
	rejected("worker.settings.TEMPORAL_API_KEY=x", "invalid propertyName 'TEMPORAL_API_KEY'")
	rejected("settings.GPUAAS_ENV=x", "the chart sets GPUAAS_ENV")
	rejected("images.api=registry.example.com/api", "/images/api")
	rejected("images.api=registry.example.com/api:latest", "/images/api")
	rejected("vault.appRoleSecrets.api=vault-api", "/vault")
	rejected("nodeAPI.url=http://nodes.example.com", "/nodeAPI/url")
}

// alertRules: the chart has no copy of the alert rules.
func (c chart) alertRules(t *testing.T) {
	t.Parallel()
	target, err := os.Readlink(filepath.Join(c.Chart, "files", "alerts.yaml"))
	require.NoError(t, err)
	rules := filepath.Join("..", "observability", "alerts.yaml")
	assert.Equal(t, filepath.Join("..", "..", rules), target)
	text, err := os.ReadFile(rules)
	require.NoError(t, err)
	var want map[string]any
	require.NoError(t, yaml.Unmarshal(text, &want))
	found := false
	for _, o := range c.render(t, c.All()) {
		if o.Kind == "PrometheusRule" {
			var got struct{ Spec map[string]any }
			require.NoError(t, yaml.Unmarshal(o.text, &got))
			assert.Equal(t, want, got.Spec)
			found = true
		}
	}
	assert.True(t, found)
}

// TestNotes: the commands that Helm prints after an installation exist.
func TestNotes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("gpuaas", "templates", "NOTES.txt"))
	require.NoError(t, err)
	commands := regexp.MustCompile(`(?m)^  gpuaas (.+)$`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, commands)
	for _, command := range commands {
		var stdout, stderr bytes.Buffer
		assert.Zero(t, cli.Main(t.Context(), cli.Platform{}, append(strings.Fields(command[1]), "--help"),
			cli.Stdio{In: strings.NewReader(""), Out: &stdout, Err: &stderr}), "gpuaas %s: %s", command[1], stderr.String())
		assert.Contains(t, stdout.String(), "gpuaas "+command[1])
	}
}

// TestValuesAreDescribed: each key of values.yaml has a comment.
func TestValuesAreDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("gpuaas", "values.yaml"))
	require.NoError(t, err)
	before := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			assert.True(t, strings.HasPrefix(before, "# "), "%s has no comment", line)
		}
		before = line
	}
}

// TestMetricOfAutoscaler: the document's query of the autoscaler's metric selects the histograms that the worker exports.
func TestMetricOfAutoscaler(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes-install.md"))
	require.NoError(t, err)
	query := regexp.MustCompile(`\{__name__=~"(.+)",task_queue="lifecycle"\}`).FindSubmatch(text)
	require.NotNil(t, query)
	name := regexp.MustCompile("^(?:" + string(query[1]) + ")$")

	reg := prometheus.NewRegistry()
	handler, err := temporal.Metrics(reg)
	require.NoError(t, err)
	handler = handler.WithTags(map[string]string{"task_queue": lifecycle.TaskQueue})
	handler.Timer("temporal_activity_schedule_to_start_latency").Record(time.Second)
	handler.Timer("temporal_workflow_task_schedule_to_start_latency").Record(time.Second)
	families, err := reg.Gather()
	require.NoError(t, err)
	require.Len(t, families, 2)
	for _, f := range families {
		require.Regexp(t, name, f.GetName()+"_bucket")
		labels := map[string]string{}
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		require.Equal(t, "lifecycle", labels["task_queue"])
	}
}
