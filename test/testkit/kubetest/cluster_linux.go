package kubetest

import (
	"testing"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// Cluster is a running cluster.
type Cluster struct{ engine *engine }

// Start starts a cluster with two nodes and waits until they are ready. The end of the test
// stops it. The test is skipped under -short, and needs what missing checks.
func Start(tb testing.TB) *Cluster {
	tb.Helper()
	if testing.Short() {
		tb.Skip("starts a cluster; not under -short")
	}
	lacks := missing()
	need.That(tb, lacks == nil, "this machine cannot run a Kubernetes cluster: %v; run: ./task kubernetes", lacks)
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
