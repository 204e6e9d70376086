package kubernetes

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/kubetest"
)

// right is a request with a node's credentials and the API server's answer.
type right struct {
	what, method, path string
	body               any
	code               int // of the refusal, 0 if the request is allowed
}

const forbidden = http.StatusForbidden

// nodeRights lists what the API server allows with the credentials of a node's
// kubelet, the user system:node:NAME: what the driver may rely on without other
// credentials.
func nodeRights(s shared) {
	t, c := s.t, s.c
	n := c.Namespace(t)
	own, other := c.Nodes()[0], c.Nodes()[1]
	grace := kubetest.Object{"gracePeriodSeconds": 0}
	n.LocalVolume(t, own, "data")
	n.Pod(t, "own", kubetest.Spec{Node: own, Volumes: map[string]kubetest.Object{
		"/data": {"persistentVolumeClaim": kubetest.Object{"claimName": "data"}},
	}})
	for _, name := range []string{"evicted", "budgeted", "deleted"} {
		n.Pod(t, name, kubetest.Spec{Node: own})
	}
	n.Pod(t, "foreign", kubetest.Spec{Node: other})
	n.Budget(t, "budgeted", 1)
	uid := ""
	for _, app := range []string{"own", "evicted", "budgeted", "deleted", "foreign"} {
		pod := n.Ready(t, app, 1)[0]
		if app == "deleted" {
			uid = pod.Metadata.UID
		}
	}
	c.Endpoints(t, "192.0.2.1")
	evict := func(pod string, options kubetest.Object) kubetest.Object {
		return kubetest.Object{"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
			"metadata": kubetest.Object{"name": pod, "namespace": n.Name}}
	}
	wrong := kubetest.Object{"preconditions": kubetest.Object{"uid": "00000000-0000-0000-0000-000000000000"}}
	same := kubetest.Object{"gracePeriodSeconds": 0, "preconditions": kubetest.Object{"uid": uid}}
	node := "/api/v1/nodes/" + own
	ofNode := kubetest.Selector("fieldSelector", "spec.nodeName="+own)
	policies, apps := "/apis/policy/v1/", "/apis/apps/v1/"
	as := c.AsNode(t, own)
	for _, r := range []right{
		{"read the own node", http.MethodGet, node, nil, 0},
		{"read another node", http.MethodGet, "/api/v1/nodes/" + other, nil, forbidden},
		{"list nodes", http.MethodGet, "/api/v1/nodes", nil, forbidden},
		{"list control plane nodes", http.MethodGet, "/api/v1/nodes" + kubetest.Selector("labelSelector", "node-role.kubernetes.io/control-plane"), nil, forbidden},
		{"cordon the own node", http.MethodPatch, node, kubetest.Object{"spec": kubetest.Object{"unschedulable": true}}, 0},
		{"uncordon the own node", http.MethodPatch, node, kubetest.Object{"spec": kubetest.Object{"unschedulable": nil}}, 0},
		{"cordon another node", http.MethodPatch, "/api/v1/nodes/" + other, kubetest.Object{"spec": kubetest.Object{"unschedulable": true}}, forbidden},
		{"annotate the own node", http.MethodPatch, node, annotation("gpuaas.example/test", "yes"), 0},
		{"remove the annotation", http.MethodPatch, node, annotation("gpuaas.example/test", nil), 0},
		{"taint the own node", http.MethodPatch, node, kubetest.Object{"spec": kubetest.Object{"taints": []kubetest.Object{
			{"key": "gpuaas.example/test", "effect": "NoSchedule"}}}}, forbidden},
		{"label the own node as control plane", http.MethodPatch, node, kubetest.Object{"metadata": kubetest.Object{"labels": kubetest.Object{
			"node-role.kubernetes.io/control-plane": ""}}}, forbidden},
		{"delete the own node", http.MethodDelete, node, nil, forbidden},

		{"list pods of the own node", http.MethodGet, "/api/v1/pods" + ofNode, nil, 0},
		{"list pods of all nodes", http.MethodGet, "/api/v1/pods", nil, forbidden},
		{"list pods of another node", http.MethodGet, "/api/v1/pods" + kubetest.Selector("fieldSelector", "spec.nodeName="+other), nil, forbidden},
		{"read an own pod", http.MethodGet, n.PodPath("own"), nil, 0},
		{"read a pod of another node", http.MethodGet, n.PodPath("foreign"), nil, forbidden},
		{"evict an own pod, wrong UID", http.MethodPost, n.PodPath("evicted") + "/eviction", evict("evicted", wrong), http.StatusConflict},
		{"evict an own pod", http.MethodPost, n.PodPath("evicted") + "/eviction", evict("evicted", nil), 0},
		{"evict an own pod against its budget", http.MethodPost, n.PodPath("budgeted") + "/eviction", evict("budgeted", nil), http.StatusTooManyRequests},
		{"try an eviction", http.MethodPost, n.PodPath("own") + "/eviction?dryRun=All", evict("own", kubetest.Object{"dryRun": []string{"All"}}), 0},
		{"try an eviction against the budget", http.MethodPost, n.PodPath("budgeted") + "/eviction?dryRun=All",
			evict("budgeted", kubetest.Object{"dryRun": []string{"All"}}), http.StatusTooManyRequests},
		{"evict a pod of another node", http.MethodPost, n.PodPath("foreign") + "/eviction", evict("foreign", nil), forbidden},
		{"evict a pod that does not exist", http.MethodPost, n.PodPath("absent") + "/eviction", evict("absent", nil), http.StatusNotFound},
		{"delete an own pod, wrong UID", http.MethodDelete, n.PodPath("deleted"), wrong, http.StatusConflict},
		{"delete an own pod without grace", http.MethodDelete, n.PodPath("deleted"), same, 0},
		{"delete a pod of another node", http.MethodDelete, n.PodPath("foreign"), grace, forbidden},

		{"list budgets of a namespace", http.MethodGet, policies + "namespaces/" + n.Name + "/poddisruptionbudgets", nil, forbidden},
		{"list all budgets", http.MethodGet, policies + "poddisruptionbudgets", nil, forbidden},
		{"read a budget", http.MethodGet, policies + "namespaces/" + n.Name + "/poddisruptionbudgets/budgeted", nil, forbidden},
		{"read the claim of an own pod", http.MethodGet, "/api/v1/namespaces/" + n.Name + "/persistentvolumeclaims/data", nil, 0},
		{"read the volume of an own pod", http.MethodGet, "/api/v1/persistentvolumes/" + n.Name + "-data", nil, 0},
		{"list claims", http.MethodGet, "/api/v1/namespaces/" + n.Name + "/persistentvolumeclaims", nil, forbidden},
		{"list volumes", http.MethodGet, "/api/v1/persistentvolumes", nil, forbidden},
		{"list replica sets", http.MethodGet, apps + "namespaces/" + n.Name + "/replicasets", nil, forbidden},
		{"list daemon sets", http.MethodGet, apps + "namespaces/" + n.Name + "/daemonsets", nil, forbidden},
		{"read the addresses of the API servers", http.MethodGet, "/api/v1/namespaces/default/endpoints/kubernetes", nil, 0},
		{"read the own lease", http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + own, nil, 0},
		{"read a lease of kube-system", http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/plndr-cp-lock", nil, forbidden},
	} {
		t.Run(r.what, func(t *testing.T) {
			_, err := as.Do(t.Context(), r.method, r.path, r.body, nil)
			require.Equal(t, r.code, code(t, err), "%v", err)
			t.Log(fmt.Sprint(r.method, " ", r.path), "=", err)
		})
	}
}

func annotation(key string, value any) kubetest.Object {
	return kubetest.Object{"metadata": kubetest.Object{"annotations": kubetest.Object{key: value}}}
}
