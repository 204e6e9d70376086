package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Namespace is a namespace of one test. The end of the test deletes it with all its pods.
type Namespace struct {
	Name    string
	cluster *Cluster
}

// Namespace creates a namespace.
func (c *Cluster) Namespace(tb testing.TB) Namespace {
	tb.Helper()
	var created struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	c.Do(tb, http.MethodPost, "/api/v1/namespaces",
		Object{"apiVersion": "v1", "kind": "Namespace", "metadata": Object{"generateName": "test-"}}, &created)
	n := Namespace{created.Metadata.Name, c}
	c.Eventually(tb, "the controllers create the namespace's default service account, which pods need", func() bool {
		_, err := c.AsAdmin().Do(tb.Context(), http.MethodGet, "/api/v1/namespaces/"+n.Name+"/serviceaccounts/default", nil, nil)
		return err == nil
	})
	tb.Cleanup(func() {
		c.Do(tb, http.MethodDelete, "/api/v1/namespaces/"+n.Name, nil, nil)
		c.Eventually(tb, "the pods of the test end", func() bool {
			// A pod may ignore SIGTERM and have a long grace period.
			c.Do(tb, http.MethodDelete, n.path("pods", ""), Object{"gracePeriodSeconds": 0}, nil)
			return len(n.Pods(tb)) == 0
		})
	})
	return n
}

// Pod is what tests need of a pod.
type Pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// Ready reports whether a pod is ready.
func (p Pod) Ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && p.Metadata.DeletionTimestamp == nil
		}
	}
	return false
}

// Pods returns all pods of the namespace.
func (n Namespace) Pods(tb testing.TB) []Pod {
	tb.Helper()
	var list struct {
		Items []Pod `json:"items"`
	}
	n.cluster.Do(tb, http.MethodGet, n.path("pods", ""), nil, &list)
	return list.Items
}

// Ready waits until the pods with the label app=NAME are so many, and ready, and returns
// them.
func (n Namespace) Ready(tb testing.TB, app string, count int) (ready []Pod) {
	tb.Helper()
	n.cluster.Eventually(tb, fmt.Sprintf("%d pods of %s are ready", count, app), func() bool {
		ready = nil
		for _, p := range n.Pods(tb) {
			if p.Metadata.Labels["app"] == app && p.Ready() {
				ready = append(ready, p)
			}
		}
		return len(ready) == count
	})
	return ready
}

// path returns the path of an object of the core API, "" for the list.
func (n Namespace) path(resource, name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+n.Name+"/"+resource+"/"+name, "/")
}

// PodPath returns the path of a pod.
func (n Namespace) PodPath(name string) string { return n.path("pods", name) }

// Spec is a pod of a test: one container of the image.
type Spec struct {
	// Args are the arguments of the container: see the program in folder container.
	Args []string
	// Node, if set, is the only node that the pod may run on. The scheduler respects it.
	Node string
	// Grace is how long the container may run after SIGTERM, in seconds.
	Grace int
	// Volumes maps mount paths in the container to volume sources, such as
	// {"emptyDir": {}}.
	Volumes map[string]Object
	// Extra are further fields of the pod's spec.
	Extra Object
}

// object returns the pod's spec.
func (s Spec) object() Object {
	container := Object{"name": "main", "image": Image, "imagePullPolicy": "Never", "args": s.Args}
	o := Object{"terminationGracePeriodSeconds": s.Grace, "automountServiceAccountToken": false}
	var mounts, volumes []Object
	for path, source := range s.Volumes {
		name := fmt.Sprintf("volume-%d", len(mounts))
		mounts = append(mounts, Object{"name": name, "mountPath": path})
		volume := Object{"name": name}
		maps.Copy(volume, source)
		volumes = append(volumes, volume)
	}
	container["volumeMounts"], o["volumes"] = mounts, volumes
	o["containers"] = []Object{container}
	if s.Node != "" {
		o["nodeSelector"] = Object{"kubernetes.io/hostname": s.Node}
	}
	maps.Copy(o, s.Extra)
	return o
}

// Pod creates a pod without a controller, with the label app=NAME.
func (n Namespace) Pod(tb testing.TB, name string, s Spec) {
	tb.Helper()
	n.cluster.Create(tb, Object{"apiVersion": "v1", "kind": "Pod", "metadata": n.meta(name), "spec": s.object()})
}

// Deployment creates a Deployment whose pods have the label app=NAME.
func (n Namespace) Deployment(tb testing.TB, name string, replicas int, s Spec) {
	tb.Helper()
	n.workload(tb, "Deployment", name, s, Object{"replicas": replicas})
}

// DaemonSet creates a DaemonSet whose pods have the label app=NAME.
func (n Namespace) DaemonSet(tb testing.TB, name string, s Spec) {
	tb.Helper()
	n.workload(tb, "DaemonSet", name, s, Object{})
}

func (n Namespace) workload(tb testing.TB, kind, name string, s Spec, spec Object) {
	tb.Helper()
	spec["selector"] = Object{"matchLabels": Object{"app": name}}
	spec["template"] = Object{"metadata": Object{"labels": Object{"app": name}}, "spec": s.object()}
	n.cluster.Create(tb, Object{"apiVersion": "apps/v1", "kind": kind, "metadata": n.meta(name), "spec": spec})
}

func (n Namespace) meta(name string) Object {
	return Object{"name": name, "namespace": n.Name, "labels": Object{"app": name}}
}

// Budget creates a PodDisruptionBudget for the pods with the label app=NAME and waits
// until it applies.
func (n Namespace) Budget(tb testing.TB, name string, minAvailable int) {
	tb.Helper()
	n.cluster.Create(tb, Object{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": n.meta(name),
		"spec": Object{"minAvailable": minAvailable, "selector": Object{"matchLabels": Object{"app": name}}}})
	n.cluster.Eventually(tb, "the budget applies", func() bool {
		var budget struct {
			Metadata struct {
				Generation int `json:"generation"`
			} `json:"metadata"`
			Status struct {
				ObservedGeneration int `json:"observedGeneration"`
			} `json:"status"`
		}
		n.cluster.Do(tb, http.MethodGet, n.budgetPath(name), nil, &budget)
		return budget.Status.ObservedGeneration == budget.Metadata.Generation
	})
}

// DeleteBudget deletes a PodDisruptionBudget.
func (n Namespace) DeleteBudget(tb testing.TB, name string) {
	tb.Helper()
	n.cluster.Do(tb, http.MethodDelete, n.budgetPath(name), nil, nil)
}

func (n Namespace) budgetPath(name string) string {
	return "/apis/policy/v1/namespaces/" + n.Name + "/poddisruptionbudgets/" + name
}

// StaticPod gives a node's kubelet a pod that the API server shows as a mirror pod,
// NAME-NODE. The end of the test removes it.
func (n Namespace) StaticPod(tb testing.TB, node, name string) {
	tb.Helper()
	text, err := json.Marshal(Object{"apiVersion": "v1", "kind": "Pod", "metadata": n.meta(name), "spec": Spec{}.object()})
	require.NoError(tb, err)
	file := filepath.Join(n.cluster.node(tb, node).Dir, "manifests", name+".json")
	require.NoError(tb, os.WriteFile(file, text, 0o600))
	tb.Cleanup(func() { require.NoError(tb, os.Remove(file)) })
}

// LocalVolume creates a PersistentVolume on a node's disk and a claim of the same name
// for it. The end of the test deletes the volume.
func (n Namespace) LocalVolume(tb testing.TB, node, name string) {
	tb.Helper()
	volume, dir := n.Name+"-"+name, tb.TempDir()
	size := Object{"storage": "1Mi"}
	n.cluster.Create(tb, Object{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": Object{"name": volume}, "spec": Object{
		"capacity": size, "accessModes": []string{"ReadWriteOnce"}, "local": Object{"path": dir}, "storageClassName": volume,
		"nodeAffinity": Object{"required": Object{"nodeSelectorTerms": []Object{{"matchExpressions": []Object{
			{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{node}},
		}}}}},
	}})
	tb.Cleanup(func() { n.cluster.Do(tb, http.MethodDelete, "/api/v1/persistentvolumes/"+volume, nil, nil) })
	n.cluster.Create(tb, Object{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": n.meta(name), "spec": Object{
		"accessModes": []string{"ReadWriteOnce"}, "resources": Object{"requests": size}, "storageClassName": volume,
	}})
}

// Log returns the output of a pod, "" if it has none yet.
func (n Namespace) Log(tb testing.TB, p Pod) string {
	tb.Helper()
	pattern := filepath.Join(n.cluster.node(tb, p.Spec.NodeName).Dir, "pods", n.Name+"_"+p.Metadata.Name+"_"+p.Metadata.UID, "main", "*.log")
	files, err := filepath.Glob(pattern)
	require.NoError(tb, err)
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(tb, err)
		all.Write(text)
	}
	return all.String()
}

// Selector returns a query string for a list request.
func Selector(name, value string) string { return "?" + url.Values{name: {value}}.Encode() }
