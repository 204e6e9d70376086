package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpuaas/gpuaas/test/stack"
	"github.com/gpuaas/gpuaas/test/testkit/devserver"
)

// binary is the program of all Kubernetes components in the project's bin directory.
const binary = "gpuaas-test-kubernetes"

// Start starts a cluster with two nodes and waits until they are ready. The end of the test
// stops it. The test is skipped under -short, and if this machine cannot run a cluster.
func Start(tb testing.TB) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a cluster; not under -short")
	}
	if err := missing(); err != nil {
		tb.Skipf("this machine cannot run a Kubernetes cluster: %v; run: ./task kubernetes", err)
	}
	c, err := launch("node-1", "node-2")
	tb.Cleanup(func() {
		if tb.Failed() {
			c.logTails(tb)
		}
		if err := c.stop(); err != nil {
			tb.Error(err)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// missing returns what this machine needs to run a cluster.
func missing() error {
	if os.Geteuid() != 0 {
		return errors.New("the kubelet needs root")
	}
	for _, p := range []string{"etcd", "containerd", "ctr", "runc", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			return err
		}
	}
	if _, err := cniFolder(); err != nil {
		return err
	}
	_, err := devserver.Find(binary)
	return err
}

// Cluster is a running cluster.
type Cluster struct {
	dir, url string
	program  string
	ports    ports
	ca       *authority
	admin    string // path of a kubeconfig
	api      *Client
	servers  []*process // in the order of their start
	nodes    []*node
}

// apiServer is the index of the API server in the servers.
const apiServer = 1

// ports are the ports of a cluster on the loopback address. The kubelets use the ports
// from kubelet upward.
type ports struct{ etcd, peer, api, kubelet int }

// launch starts a cluster with a kubelet for each name, and waits until its nodes are
// ready. The caller stops the cluster, also after an error.
func launch(nodes ...string) (*Cluster, error) {
	c, err := prepare(nodes)
	if err == nil {
		err = c.start()
	}
	return c, err
}

// prepare writes the files of a cluster.
func prepare(nodes []string) (*Cluster, error) {
	c := &Cluster{}
	var err error
	if c.dir, err = os.MkdirTemp("", "kubetest-"); err != nil {
		return c, err
	}
	if c.program, err = devserver.Find(binary); err != nil {
		return c, err
	}
	first, err := stack.FreePorts(3 + len(nodes))
	if err != nil {
		return c, err
	}
	c.ports = ports{first, first + 1, first + 2, first + 3}
	c.url = fmt.Sprintf("https://127.0.0.1:%d", c.ports.api)
	if c.ca, err = newAuthority(c.dir); err != nil {
		return c, err
	}
	if err := c.ca.server(); err != nil {
		return c, err
	}
	if _, err := c.ca.newKey("service-accounts"); err != nil {
		return c, err
	}
	if c.admin, err = c.ca.client(c.url, "admin", "admin", "system:masters"); err != nil {
		return c, err
	}
	for i, name := range nodes {
		if err := c.prepareNode(i, name); err != nil {
			return c, err
		}
	}
	return c, buildImage(context.Background(), c.dir, c.image())
}

func (c *Cluster) image() string { return filepath.Join(c.dir, "image.tar") }

// prepareNode creates the credentials of a node.
func (c *Cluster) prepareNode(i int, name string) error {
	kubeconfig, err := c.ca.client(c.url, name, "system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	cni, err := cniFolder()
	c.nodes = append(c.nodes, &node{
		Name: name, Dir: filepath.Join(c.dir, name), Kubeconfig: kubeconfig, Program: c.program, Image: c.image(), CA: c.ca.caFile(),
		CNI: cni, Subnet: fmt.Sprintf("10.88.%d.0/24", i), Port: c.ports.kubelet + i, Cgroup: cgroupName(name),
	})
	return err
}

// start starts the servers and the nodes.
func (c *Cluster) start() error {
	etcd := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.peer)
	if err := c.server("etcd", "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return err
	}
	if err := c.server("kube-apiserver", c.program, "kube-apiserver", "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--tls-cert-file="+c.ca.file("server", "crt"), "--tls-private-key-file="+c.ca.file("server", "key"), "--client-ca-file="+c.ca.caFile(),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.ca.file("service-accounts", "key"),
		"--service-account-signing-key-file="+c.ca.file("service-accounts", "key"), "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--endpoint-reconciler-type=none"); err != nil {
		return err
	}
	var err error
	if c.api, err = c.Client(c.admin); err != nil {
		return err
	}
	if err := c.readyAPI(); err != nil {
		return err
	}
	// Both run as administrators: their rights are not what tests are about.
	if err := c.server("kube-controller-manager", c.program, "kube-controller-manager", "--kubeconfig="+c.admin, "--leader-elect=false",
		"--secure-port=0", "--service-account-private-key-file="+c.ca.file("service-accounts", "key"), "--root-ca-file="+c.ca.caFile(),
		"--kube-api-qps=200", "--kube-api-burst=400"); err != nil {
		return err
	}
	if err := c.server("kube-scheduler", c.program, "kube-scheduler", "--kubeconfig="+c.admin, "--leader-elect=false", "--secure-port=0"); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	return c.ready()
}

// server starts a program of the control plane.
func (c *Cluster) server(name, path string, args ...string) error {
	p, err := startProcess(c.dir, name, 0, path, args...)
	if err == nil {
		c.servers = append(c.servers, p)
	}
	return err
}

// readyAPI waits until the API server is ready.
func (c *Cluster) readyAPI() error {
	return wait("the API server is ready", startTimeout, func() error {
		_, err := c.api.Do(context.Background(), http.MethodGet, "/readyz", nil, nil)
		return err
	}, c.servers...)
}

// ready waits until all nodes are ready and pods can be created.
func (c *Cluster) ready() error {
	for _, n := range c.nodes {
		if err := c.readyNode(n); err != nil {
			return err
		}
	}
	return wait("service accounts exist", startTimeout, func() error {
		_, err := c.api.Do(context.Background(), http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
		return err
	}, c.servers...)
}

// readyNode waits until a node is ready.
func (c *Cluster) readyNode(n *node) error {
	return wait(n.Name+" is ready", startTimeout, func() error { return nodeReady(c.api, n.Name) }, append(slices.Clone(c.servers), n.process)...)
}

// logTails logs the ends of the logs of the processes that run pods.
func (c *Cluster) logTails(tb testing.TB) {
	tb.Helper()
	for _, p := range c.servers {
		tb.Log(p.tail())
	}
	for _, n := range c.nodes {
		if n.process != nil {
			tb.Log(n.process.tail())
		}
	}
}

// stop stops the cluster and removes its files.
func (c *Cluster) stop() error {
	var err error
	for _, n := range c.nodes {
		err = errors.Join(err, n.stop())
	}
	// Without etcd, the API server would take long to end: it ends first.
	for _, p := range slices.Backward(c.servers) {
		err = errors.Join(err, p.kill())
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}
