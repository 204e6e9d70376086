package workload

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
)

// serverLabels mark the Node objects of the servers of a control plane; the second one is that
// of older clusters.
func serverLabels() []string {
	return []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}
}

// server reports whether the node runs a control plane.
func (n kubeNode) server() bool {
	for _, l := range serverLabels() {
		if _, ok := n.Metadata.Labels[l]; ok {
			return true
		}
	}
	return false
}

// lastServer is the entry of a node that must not be drained: it runs the only control plane of
// its cluster that works and is not cordoned, or the node has no right to read whether another one
// is. ok is false for all other nodes.
//
// If the drain stops the control plane, a kubelet's rights do not suffice: two servers that are
// drained at the same time would each count the other one.
func (a *kubeAPI) lastServer(ctx context.Context, n kubeNode, stops bool) (w task.Workload, ok bool, err error) {
	if !n.server() {
		return w, false, nil
	}
	others, err := a.otherServers(ctx)
	several := len(others) > 0
	if kubeStatus(err) == http.StatusForbidden && !stops {
		// The rights of a kubelet: it reads the addresses of the API servers instead.
		several, err = a.severalServers(ctx)
	}
	switch status := kubeStatus(err); {
	case status == http.StatusForbidden || status == http.StatusNotFound:
		return task.Workload{Kind: task.KindLastServer, Name: "it is unknown whether another control plane node is ready",
			Warning: "a drain is refused: GPUAAS_KUBECONFIG must name a kubeconfig that may list nodes: " + text.Truncate(err.Error())}, true, nil
	case err != nil:
		return w, false, fmt.Errorf("cannot find the other servers of the cluster: %w", err)
	case several:
		return w, false, nil
	}
	return task.Workload{Kind: task.KindLastServer, Name: "no other control plane node is ready and schedulable",
		Warning: "a drain is refused: add a second server first, or terminate the node"}, true, nil
}

// otherServers returns the names of the other control plane nodes that are ready and schedulable.
// One that is cordoned may be drained too. A drain cordons its node before it looks for others, so
// that of two servers at least one sees the cordon of the other.
func (a *kubeAPI) otherServers(ctx context.Context) (names []string, err error) {
	for _, label := range serverLabels() {
		nodes, err := list[kubeNode](ctx, a, kubeCore+"/nodes", url.Values{"labelSelector": {label}})
		if err != nil {
			return nil, err
		}
		for _, n := range nodes {
			if n.Metadata.Name != a.node && n.server() && n.ready() && !n.Spec.Unschedulable {
				names = append(names, n.Metadata.Name)
			}
		}
		if len(names) > 0 {
			return names, nil
		}
	}
	return nil, nil
}

// severalServers reports whether the service of the API servers has more than one address. An
// API server that stopped loses its address there within seconds.
func (a *kubeAPI) severalServers(ctx context.Context) (bool, error) {
	var e struct {
		Subsets []struct {
			Addresses []struct {
				IP string `json:"ip"`
			} `json:"addresses"`
		} `json:"subsets"`
	}
	if err := a.call(ctx, http.MethodGet, kubeCore+"/namespaces/default/endpoints/kubernetes", nil, nil, &e); err != nil {
		return false, err
	}
	addresses := map[string]bool{}
	for _, s := range e.Subsets {
		for _, x := range s.Addresses {
			addresses[x.IP] = true
		}
	}
	return len(addresses) > 1, nil
}
