package kubetest

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// Node is what tests need of a Node object.
type Node struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         string            `json:"uid"`
		Annotations map[string]string `json:"annotations"`
		Labels      map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable bool `json:"unschedulable"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
			Reason string `json:"reason"`
		} `json:"conditions"`
	} `json:"status"`
}

// nodeReady returns an error unless a node is ready.
func nodeReady(api *Client, name string) error {
	var n Node
	if _, err := api.Do(context.Background(), http.MethodGet, nodePath(name), nil, &n); err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		}
	}
	return fmt.Errorf("the conditions of %s are %v", name, n.Status.Conditions)
}

func nodePath(name string) string { return "/api/v1/nodes/" + name }

// Nodes returns the names of all nodes.
func (c *Cluster) Nodes() []string {
	names := make([]string, len(c.engine.nodes))
	for i, n := range c.engine.nodes {
		names[i] = n.Name
	}
	return names
}

func (c *Cluster) node(tb testing.TB, name string) *node {
	tb.Helper()
	for _, n := range c.engine.nodes {
		if n.Name == name {
			return n
		}
	}
	require.FailNow(tb, "no node "+name)
	return nil
}

// Node returns a Node object.
func (c *Cluster) Node(tb testing.TB, name string) (n Node) {
	tb.Helper()
	c.Do(tb, http.MethodGet, nodePath(name), nil, &n)
	return n
}

// Cordon makes a node unschedulable, or schedulable again, as an administrator.
func (c *Cluster) Cordon(tb testing.TB, name string, on bool) {
	tb.Helper()
	c.Do(tb, http.MethodPatch, nodePath(name), Object{"spec": Object{"unschedulable": on}}, nil)
}

// Label sets a label of a node for the test, as an administrator. The end of the test
// removes it.
func (c *Cluster) Label(tb testing.TB, name, label, value string) {
	tb.Helper()
	set := func(value any) {
		c.Do(tb, http.MethodPatch, nodePath(name), Object{"metadata": Object{"labels": Object{label: value}}}, nil)
	}
	set(value)
	tb.Cleanup(func() { set(nil) })
}

// Restart kills a node with all its containers and starts it again, as a reboot does. It
// returns when the node is ready.
func (c *Cluster) Restart(tb testing.TB, name string) {
	tb.Helper()
	n := c.node(tb, name)
	require.NoError(tb, n.stop())
	require.NoError(tb, n.start())
	require.NoError(tb, c.engine.readyNode(n))
}

// StopAPI kills the API server. StartAPI starts it again, and so does the end of the test.
func (c *Cluster) StopAPI(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() { c.StartAPI(tb) })
	require.NoError(tb, c.engine.servers[apiServer].kill())
}

// StartAPI starts the API server after StopAPI and returns when it is ready.
func (c *Cluster) StartAPI(tb testing.TB) {
	tb.Helper()
	p := c.engine.servers[apiServer]
	select {
	case <-p.exited:
	default:
		return
	}
	again, err := startProcess(c.engine.dir, p.name, 0, p.cmd.Path, p.cmd.Args[1:]...)
	require.NoError(tb, err)
	c.engine.servers[apiServer] = again
	require.NoError(tb, c.engine.readyAPI())
}

// Endpoints sets the addresses of the service of the API servers for the test, which this
// cluster has not. The end of the test removes them.
func (c *Cluster) Endpoints(tb testing.TB, ips ...string) {
	tb.Helper()
	addresses := make([]Object, len(ips))
	for i, ip := range ips {
		addresses[i] = Object{"ip": ip}
	}
	o := Object{"apiVersion": "v1", "kind": "Endpoints", "metadata": Object{"name": "kubernetes", "namespace": "default"},
		"subsets": []Object{{"addresses": addresses, "ports": []Object{{"name": "https", "port": 6443}}}}}
	c.Do(tb, http.MethodPost, "/api/v1/namespaces/default/endpoints", o, nil)
	tb.Cleanup(func() { c.Do(tb, http.MethodDelete, "/api/v1/namespaces/default/endpoints/kubernetes", nil, nil) })
}

// Eventually waits until a condition of the cluster holds.
func (c *Cluster) Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	harness.Poll(tb, holds, harness.Timeout, pollEvery, what)
}
