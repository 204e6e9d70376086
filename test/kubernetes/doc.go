// Package kubernetes tests the workload driver for Kubernetes and the cluster agent on a real
// cluster, and the cluster itself: package kubetest. It contains only tests, and works on Linux only.
//
// It needs bin/ (./task build and ./task build:test-kubernetes) and the programs of
// tools/need.sh kubernetes. ./task kubernetes provides both. With -short it runs no test.
package kubernetes
