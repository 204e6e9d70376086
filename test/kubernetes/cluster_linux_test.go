package kubernetes

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

// shared is a test on a cluster that others use, too.
type shared struct {
	t *testing.T
	c *kubetest.Cluster
}

// TestCluster tests the parts of one cluster that other tests rely on.
func TestCluster(t *testing.T) {
	c := kubetest.Start(t)
	for name, test := range map[string]func(shared){
		"eviction": eviction, "objects": objects, "cordon": cordon, "rights of a node": nodeRights, "cluster agent": checksNodes, "chart": chart,
	} {
		t.Run(name, func(t *testing.T) { test(shared{t, c}) })
	}
}

// evict asks the API server to evict a pod.
func evict(t *testing.T, as *kubetest.Client, n kubetest.Namespace, pod string) error {
	t.Helper()
	_, err := as.Do(t.Context(), http.MethodPost, n.PodPath(pod)+"/eviction",
		kubetest.Object{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": kubetest.Object{"name": pod, "namespace": n.Name}}, nil)
	return err
}

// code returns the status of a refused request, 0 if it succeeded.
func code(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var f *kubetest.StatusError
	require.ErrorAs(t, err, &f)
	return f.Code
}

// A Deployment runs on both nodes. An eviction ends a pod with SIGTERM, and a budget
// prevents the next one.
func eviction(s shared) {
	t, c := s.t, s.c
	n := c.Namespace(t)
	n.Deployment(t, "app", 2, kubetest.Spec{Grace: 30, Extra: kubetest.Object{"topologySpreadConstraints": []kubetest.Object{{
		"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
		"labelSelector": kubetest.Object{"matchLabels": kubetest.Object{"app": "app"}},
	}}}})
	pods := n.Ready(t, "app", 2)
	require.ElementsMatch(t, c.Nodes(), []string{pods[0].Spec.NodeName, pods[1].Spec.NodeName})

	first := pods[0]
	require.NoError(t, evict(t, c.AsAdmin(), n, first.Metadata.Name))
	c.Eventually(t, "the container received SIGTERM or is gone", func() bool {
		return strings.Contains(n.Log(t, first), "received SIGTERM") || !exists(t, n, first)
	})
	c.Eventually(t, "the pod ends", func() bool { return !exists(t, n, first) })
	pods = n.Ready(t, "app", 2)

	n.Budget(t, "app", 2)
	err := evict(t, c.AsAdmin(), n, pods[0].Metadata.Name)
	require.Equal(t, http.StatusTooManyRequests, code(t, err))
	require.ErrorContains(t, err, "{DisruptionBudget The disruption budget app needs 2 healthy pods and has 2 currently")
	n.DeleteBudget(t, "app")
	require.NoError(t, evict(t, c.AsAdmin(), n, pods[0].Metadata.Name))
}

// exists reports whether the pod with this UID exists.
func exists(t *testing.T, n kubetest.Namespace, pod kubetest.Pod) bool {
	t.Helper()
	for _, p := range n.Pods(t) {
		if p.Metadata.UID == pod.Metadata.UID {
			return true
		}
	}
	return false
}

// The other objects of the kit: a DaemonSet, a static pod, a pod with a local volume, and
// a container that ignores SIGTERM.
func objects(s shared) {
	t, c := s.t, s.c
	n := c.Namespace(t)
	node := c.Nodes()[0]
	n.DaemonSet(t, "agent", kubetest.Spec{})
	n.StaticPod(t, node, "static")
	n.LocalVolume(t, node, "data")
	n.Pod(t, "local", kubetest.Spec{Volumes: map[string]kubetest.Object{
		"/data": {"persistentVolumeClaim": kubetest.Object{"claimName": "data"}}, "/scratch": {"emptyDir": kubetest.Object{}},
	}})
	n.Pod(t, "stubborn", kubetest.Spec{Args: []string{"-ignore-sigterm"}, Node: node, Grace: 600})

	require.Len(t, n.Ready(t, "agent", len(c.Nodes())), len(c.Nodes()))
	static := n.Ready(t, "static", 1)[0]
	require.Equal(t, "static-"+node, static.Metadata.Name)
	require.Contains(t, static.Metadata.Annotations, "kubernetes.io/config.mirror")
	require.Equal(t, node, n.Ready(t, "local", 1)[0].Spec.NodeName)

	stubborn := n.Ready(t, "stubborn", 1)[0]
	c.Do(t, http.MethodDelete, n.PodPath("stubborn"), nil, nil)
	c.Eventually(t, "the container received SIGTERM", func() bool { return strings.Contains(n.Log(t, stubborn), "received SIGTERM") })
	require.True(t, exists(t, n, stubborn))
	c.Do(t, http.MethodDelete, n.PodPath("stubborn"), kubetest.Object{"gracePeriodSeconds": 0}, nil)
	c.Eventually(t, "the pod is gone", func() bool { return !exists(t, n, stubborn) })
}

// A cordoned node gets no pods.
func cordon(s shared) {
	t, c := s.t, s.c
	n := c.Namespace(t)
	first, second := c.Nodes()[0], c.Nodes()[1]
	c.Cordon(t, first, true)
	t.Cleanup(func() { c.Cordon(t, first, false) })
	n.Deployment(t, "app", 3, kubetest.Spec{})
	for _, p := range n.Ready(t, "app", 3) {
		require.Equal(t, second, p.Spec.NodeName)
	}
}
