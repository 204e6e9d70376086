package kubetest

import "testing"

// Cluster is a running cluster.
type Cluster struct{ engine *engine }

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
	e, err := launch("node-1", "node-2")
	tb.Cleanup(func() {
		if tb.Failed() {
			e.logTails(tb)
		}
		if err := e.stop(); err != nil {
			tb.Error(err)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return &Cluster{e}
}
