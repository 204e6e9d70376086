package kubernetes

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuaas/gpuaas/test/testkit/helmtest"
	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

// chartPaths are the collections of the chart's kinds. The kinds of the Prometheus operator are unknown to the cluster.
func chartPaths() map[string]string {
	return map[string]string{
		"Deployment":              "/apis/apps/v1/namespaces/NAMESPACE/deployments",
		"Service":                 "/api/v1/namespaces/NAMESPACE/services",
		"ServiceAccount":          "/api/v1/namespaces/NAMESPACE/serviceaccounts",
		"PodDisruptionBudget":     "/apis/policy/v1/namespaces/NAMESPACE/poddisruptionbudgets",
		"NetworkPolicy":           "/apis/networking.k8s.io/v1/namespaces/NAMESPACE/networkpolicies",
		"HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/NAMESPACE/horizontalpodautoscalers",
		"PrometheusRule":          "",
		"ServiceMonitor":          "",
	}
}

// chart tests the Helm chart.
func chart(s shared) {
	h := helmtest.New(s.t, filepath.Join("..", ".."))
	for name, values := range map[string][]string{"required values": h.Required(), "all options": h.All()} {
		s.t.Run(name, func(t *testing.T) { submitChart(t, s.c, h, values) })
	}
	s.t.Run("install", func(t *testing.T) { install(t, s.c, h) })
}

// restricted returns a namespace with the pod security standard restricted.
func restricted(t *testing.T, c *kubetest.Cluster) kubetest.Namespace {
	t.Helper()
	n := c.Namespace(t)
	c.Do(t, http.MethodPatch, "/api/v1/namespaces/"+n.Name, kubetest.Object{"metadata": kubetest.Object{
		"labels": kubetest.Object{"pod-security.kubernetes.io/enforce": "restricted"}}}, nil)
	return n
}

// submitChart submits the objects of the Helm chart to the API server, which rejects unknown fields and invalid values, and a pod of
// each Deployment to a namespace with the pod security standard restricted. Nothing is stored but the service accounts.
func submitChart(t *testing.T, c *kubetest.Cluster, h helmtest.Helm, values []string) {
	t.Helper()
	n := restricted(t, c)
	var pods []kubetest.Object
	for _, text := range h.Render(t, n.Name, values...) {
		var o kubetest.Object
		require.NoError(t, yaml.Unmarshal([]byte(text), &o))
		if pod := submit(t, c, n.Name, o); pod != nil {
			pods = append(pods, pod)
		}
	}
	require.Len(t, pods, 4)
	for _, pod := range pods {
		pod["apiVersion"], pod["kind"] = "v1", "Pod"
		pod["metadata"] = kubetest.Object{"name": "pod", "namespace": n.Name}
		c.Do(t, http.MethodPost, "/api/v1/namespaces/"+n.Name+"/pods?dryRun=All&fieldValidation=Strict", pod, nil)
	}
}

// install installs, upgrades and uninstalls the chart. The images do not exist, so no pod starts.
func install(t *testing.T, c *kubetest.Cluster, h helmtest.Helm) {
	t.Helper()
	n := restricted(t, c)
	in := []string{"release", "--kubeconfig", c.Admin(), "--namespace", n.Name}
	upgrade := append(append([]string{"upgrade", "--install", "release", h.Chart}, in[1:]...), h.Required()...)
	out, err := h.Run(t, upgrade...)
	require.NoError(t, err, out)
	require.Contains(t, out, "kubectl -n "+n.Name+" port-forward service/gpuaas-admin-api 8081")
	c.Eventually(t, "the controllers create all pods", func() bool { return len(n.Pods(t)) == 7 })
	out, err = h.Run(t, append(upgrade, "--set", "worker.replicas=3")...)
	require.NoError(t, err, out)
	c.Eventually(t, "the controllers create one more worker", func() bool { return len(n.Pods(t)) == 8 })
	out, err = h.Run(t, append([]string{"uninstall"}, in...)...)
	require.NoError(t, err, out)
	for kind, path := range chartPaths() {
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		if path != "" {
			c.Do(t, http.MethodGet, strings.ReplaceAll(path, "NAMESPACE", n.Name), nil, &list)
		}
		for _, o := range list.Items {
			require.False(t, strings.HasPrefix(o.Metadata.Name, "gpuaas"), "%s %s remains", kind, o.Metadata.Name)
		}
	}
}

// submit submits an object without storing it, except for a service account, which pods need. It returns the pod template of a
// Deployment.
func submit(t *testing.T, c *kubetest.Cluster, namespace string, o kubetest.Object) (pod kubetest.Object) {
	t.Helper()
	kind, _ := o["kind"].(string)
	path, known := chartPaths()[kind]
	require.True(t, known, kind)
	if path == "" {
		return nil
	}
	path = strings.ReplaceAll(path, "NAMESPACE", namespace) + "?fieldValidation=Strict"
	if kind != "ServiceAccount" {
		path += "&dryRun=All"
	}
	c.Do(t, http.MethodPost, path, o, nil)
	if kind == "Deployment" {
		spec, _ := o["spec"].(kubetest.Object)
		pod, _ = spec["template"].(kubetest.Object)
	}
	return pod
}
