package clusteragent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuaas/gpuaas/schema/health"
)

// outage makes all nodes of a cluster not ready.
func (r *rig) outage(names ...string) {
	r.Helper()
	for _, name := range names {
		r.ready(name, corev1.ConditionFalse)
	}
}

// open checks whether the breaker is open, by its gauge.
func (r *rig) open(want bool) {
	r.Helper()
	got := testutil.ToFloat64(r.agent.metrics.breaker)
	require.InDelta(r, map[bool]float64{true: 1}[want], got, 0)
}

// stored is the data of the record.
func (r *rig) stored() map[string]string {
	r.Helper()
	m, err := r.client.CoreV1().ConfigMaps(namespace).Get(r.Context(), recordName, metav1.GetOptions{})
	require.NoError(r, err)
	return m.Data
}

// A fault of many nodes restarts none of them, and says why. Later one node is restarted; while that does not
// help, no other one is. The breaker closes when no node has a fault.
func TestBreaker(t *testing.T) {
	t.Parallel()
	nodes := []string{"a", "b", "c", "d"}
	r := newRig(t, nodes...)
	r.settings.maxRebooting = 1
	r.pass(time.Minute)
	r.open(false)
	r.outage(nodes...)
	r.pass(29 * time.Minute)
	require.Empty(t, r.executor.reboots)
	r.open(true)
	r.phase("a", health.PhaseUnhealthy)
	require.Equal(t, 1, strings.Count(r.log.String(), "the breaker is open; no node is restarted"))
	require.Contains(t, r.log.String(), "4 of 4 nodes became unhealthy within 10m")
	require.Contains(t, r.log.String(), "node_ready KubeletNotReady")
	require.Contains(t, r.log.String(), "delete the key _breaker of the ConfigMap kube-system/gpuaas-cluster-agent")
	require.NotContains(t, r.log.String(), "gpuaas recovery")

	r.start() // another process continues
	r.pass(5 * time.Minute)
	require.Equal(t, []string{"a"}, r.executor.reboots, "one node, 30 minutes later")
	r.open(true)
	r.pass(34 * time.Minute)
	require.Equal(t, []string{"a"}, r.executor.reboots, "it did not help, so the time begins again")
	require.Contains(t, r.log.String(), "ended as not_cured")
	r.pass(10 * time.Minute)
	require.Len(t, r.executor.reboots, 2)

	for _, name := range nodes {
		r.ready(name, corev1.ConditionTrue)
	}
	r.booted("a", "boot-2")
	r.pass(time.Minute)
	r.open(false)
	require.Contains(t, r.log.String(), "the breaker closed")
	r.pass(15 * time.Minute)
	require.NotContains(t, r.stored(), breakerKey)
	r.outage("b")
	r.pass(6 * time.Minute)
	require.Equal(t, "b", r.executor.reboots[len(r.executor.reboots)-1])
}

// An operator closes the breaker by the removal of its key. The faults from before do not open it again.
func TestBreakerClosedByHand(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.outage("a", "b", "c")
	r.pass(15 * time.Minute)
	r.open(true)
	require.Contains(t, r.stored(), breakerKey)
	_, err := r.client.CoreV1().ConfigMaps(namespace).Patch(t.Context(), recordName, types.JSONPatchType,
		[]byte(`[{"op": "remove", "path": "/data/`+breakerKey+`"}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	conflicts := 0
	r.client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts++ // as the API server answers, because another one has changed the object
		return conflicts == 1, nil, apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, recordName, errors.New("changed"))
	})
	r.pass(2 * time.Minute)
	r.open(false)
	require.Len(t, r.executor.reboots, 3)
}

// A node that a restart cures closes the breaker, and the others are restarted one after another.
func TestBreakerClosesAfterACure(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.settings.maxRebooting = 1
	boots := 1
	r.executor.before = func(node string) error {
		boots++
		r.booted(node, "boot-"+strings.Repeat("x", boots))
		r.ready(node, corev1.ConditionTrue)
		return nil
	}
	r.outage("a", "b", "c")
	r.pass(30 * time.Minute)
	require.Empty(t, r.executor.reboots)
	r.pass(10 * time.Minute)
	require.Equal(t, []string{"a", "b", "c"}, r.executor.reboots)
	r.open(false)
}

// Two nodes, and nodes that an operator holds, are not many. A node that is held is not the one that shows
// whether the breaker can close.
func TestBreakerCounts(t *testing.T) {
	t.Parallel()
	hold := func(r *rig, name string) {
		r.change(name, func(n *corev1.Node) { n.Labels = map[string]string{heldLabel: heldValue} })
	}
	r := newRig(t, "a", "b", "c", "d", "e")
	hold(r, "a")
	r.outage("a", "b", "c")
	r.pass(6 * time.Minute)
	r.open(false)
	require.Equal(t, []string{"b", "c"}, r.executor.reboots)

	r = newRig(t, "a", "b", "c", "d")
	hold(r, "a")
	r.outage("a", "b", "c", "d")
	r.pass(35 * time.Minute)
	require.Equal(t, []string{"b"}, r.executor.reboots)
}

// The breaker is switched off only by its setting.
func TestBreakerOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.settings.breakerOff = true
	r.outage("a", "b", "c")
	r.pass(6 * time.Minute)
	require.Len(t, r.executor.reboots, 3)
	r.open(false)
}

// An agent that only monitors shows that the breaker would stop it, stores nothing about it, and closes it
// after its time: no restart can show whether it may close.
func TestBreakerInMonitorMode(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.settings.monitorOnly = true
	r.outage("a", "b", "c")
	r.pass(29 * time.Minute)
	r.open(true)
	require.Zero(t, r.actions("a", actionReboot, modeMonitor))
	require.NotContains(t, r.stored(), breakerKey)
	r.pass(3 * time.Minute)
	r.open(false)
	require.Equal(t, 1, r.actions("a", actionReboot, modeMonitor))
}
