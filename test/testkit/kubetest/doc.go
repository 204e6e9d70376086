// Package kubetest runs a Kubernetes cluster on this machine for the tests of a process:
// etcd, the API server, the controllers, the scheduler, and one kubelet with its own
// containerd for each node. Pods run for real. It works on Linux only, as root; start at
// Start.
//
// Each node has its own mount and process namespaces, and its pods a network namespace
// that reaches neither this machine nor the API server. Killing the first process of a
// node therefore removes all processes, mounts and networks of its pods. Of a test process
// that was killed, only empty cgroups (kubetest-…) and a temporary folder remain.
package kubetest
