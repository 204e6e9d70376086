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

// engine is the processes of a cluster and their files.
type engine struct {
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
// ready. The caller stops it, also after an error.
func launch(nodes ...string) (*engine, error) {
	e, err := prepare(nodes)
	if err == nil {
		err = e.start()
	}
	return e, err
}

// prepare writes the files of a cluster.
func prepare(nodes []string) (*engine, error) {
	e := &engine{}
	var err error
	if e.dir, err = os.MkdirTemp("", "kubetest-"); err != nil {
		return e, err
	}
	if e.program, err = devserver.Find(binary); err != nil {
		return e, err
	}
	first, err := stack.FreePorts(3 + len(nodes))
	if err != nil {
		return e, err
	}
	e.ports = ports{first, first + 1, first + 2, first + 3}
	e.url = fmt.Sprintf("https://127.0.0.1:%d", e.ports.api)
	if e.ca, err = newAuthority(e.dir); err != nil {
		return e, err
	}
	if err := e.ca.server(); err != nil {
		return e, err
	}
	if _, err := e.ca.newKey("service-accounts"); err != nil {
		return e, err
	}
	if e.admin, err = e.ca.client(e.url, "admin", "admin", "system:masters"); err != nil {
		return e, err
	}
	for i, name := range nodes {
		if err := e.prepareNode(i, name); err != nil {
			return e, err
		}
	}
	return e, buildImage(context.Background(), e.dir, e.image())
}

func (e *engine) image() string { return filepath.Join(e.dir, "image.tar") }

// prepareNode creates the credentials of a node.
func (e *engine) prepareNode(i int, name string) error {
	kubeconfig, err := e.ca.client(e.url, name, "system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	cni, err := cniFolder()
	e.nodes = append(e.nodes, &node{
		Name: name, Dir: filepath.Join(e.dir, name), Kubeconfig: kubeconfig, Program: e.program, Image: e.image(), CA: e.ca.caFile(),
		CNI: cni, Subnet: fmt.Sprintf("10.88.%d.0/24", i), Port: e.ports.kubelet + i, Cgroup: cgroupName(name),
	})
	return err
}

// start starts the servers and the nodes.
func (e *engine) start() error {
	etcd := fmt.Sprintf("http://127.0.0.1:%d", e.ports.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", e.ports.peer)
	if err := e.server("etcd", "etcd", "--data-dir", filepath.Join(e.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer); err != nil {
		return err
	}
	if err := e.server("kube-apiserver", e.program, "kube-apiserver", "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", e.ports.api),
		"--tls-cert-file="+e.ca.file("server", "crt"), "--tls-private-key-file="+e.ca.file("server", "key"), "--client-ca-file="+e.ca.caFile(),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+e.ca.file("service-accounts", "key"),
		"--service-account-signing-key-file="+e.ca.file("service-accounts", "key"), "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--endpoint-reconciler-type=none"); err != nil {
		return err
	}
	var err error
	if e.api, err = e.client(e.admin); err != nil {
		return err
	}
	if err := e.readyAPI(); err != nil {
		return err
	}
	// Both run as administrators: their rights are not what tests are about.
	if err := e.server("kube-controller-manager", e.program, "kube-controller-manager", "--kubeconfig="+e.admin, "--leader-elect=false",
		"--secure-port=0", "--service-account-private-key-file="+e.ca.file("service-accounts", "key"), "--root-ca-file="+e.ca.caFile(),
		"--kube-api-qps=200", "--kube-api-burst=400"); err != nil {
		return err
	}
	if err := e.server("kube-scheduler", e.program, "kube-scheduler", "--kubeconfig="+e.admin, "--leader-elect=false", "--secure-port=0"); err != nil {
		return err
	}
	for _, n := range e.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	return e.ready()
}

// server starts a program of the control plane.
func (e *engine) server(name, path string, args ...string) error {
	p, err := startProcess(e.dir, name, 0, path, args...)
	if err == nil {
		e.servers = append(e.servers, p)
	}
	return err
}

// readyAPI waits until the API server is ready.
func (e *engine) readyAPI() error {
	return wait("the API server is ready", startTimeout, func() error {
		_, err := e.api.Do(context.Background(), http.MethodGet, "/readyz", nil, nil)
		return err
	}, e.servers...)
}

// ready waits until all nodes are ready and pods can be created.
func (e *engine) ready() error {
	for _, n := range e.nodes {
		if err := e.readyNode(n); err != nil {
			return err
		}
	}
	return wait("service accounts exist", startTimeout, func() error {
		_, err := e.api.Do(context.Background(), http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", nil, nil)
		return err
	}, e.servers...)
}

// readyNode waits until a node is ready.
func (e *engine) readyNode(n *node) error {
	return wait(n.Name+" is ready", startTimeout, func() error { return nodeReady(e.api, n.Name) }, append(slices.Clone(e.servers), n.process)...)
}

// logTails logs the ends of the logs of the processes that run pods.
func (e *engine) logTails(tb testing.TB) {
	tb.Helper()
	for _, p := range e.servers {
		tb.Log(p.tail())
	}
	for _, n := range e.nodes {
		if n.process != nil {
			tb.Log(n.process.tail())
		}
	}
}

// stop stops the cluster and removes its files.
func (e *engine) stop() error {
	var err error
	for _, n := range e.nodes {
		err = errors.Join(err, n.stop())
	}
	// Without etcd, the API server would take long to end: it ends first.
	for _, p := range slices.Backward(e.servers) {
		err = errors.Join(err, p.kill())
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}
