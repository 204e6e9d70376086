package clusteragent

import (
	"context"
	"errors"
	"fmt"
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
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuaas/gpuaas/schema/health"
)

func TestHealthyNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, "node-1")
	r.pass(24 * time.Hour / 100)
	r.phase("node-1", health.PhaseHealthy)
	require.Empty(t, r.executor.reboots)
	require.Zero(t, testutil.ToFloat64(r.agent.metrics.unhealthy.WithLabelValues("node-1")))
	require.Positive(t, testutil.ToFloat64(r.agent.metrics.checks.WithLabelValues("node-1", "node_ready", "KubeletReady")))
	_, err := r.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), recordName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "nothing is stored about healthy nodes")
}

// An unhealthy node restarts once after its threshold, and is healthy again when another boot is.
func TestRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "node-1")
	r.pass(time.Minute)
	r.ready("node-1", corev1.ConditionUnknown)
	r.pass(5 * time.Minute)
	r.phase("node-1", health.PhaseUnhealthy)
	require.Empty(t, r.executor.reboots)
	r.pass(10 * time.Second)
	r.phase("node-1", health.PhaseWaitingReboot)
	require.Equal(t, []string{"node-1"}, r.executor.reboots)
	require.Equal(t, 1, r.actions("node-1", actionReboot, modeActive))
	require.InDelta(t, 300, testutil.ToFloat64(r.agent.metrics.unhealthy.WithLabelValues("node-1")), 0)

	r.ready("node-1", corev1.ConditionTrue)
	r.pass(time.Minute)
	r.phase("node-1", health.PhaseWaitingReboot) // the old boot: the restart is still to come
	r.ready("node-1", corev1.ConditionFalse)
	r.pass(2 * time.Minute)
	r.booted("node-1", "boot-2")
	r.ready("node-1", corev1.ConditionTrue)
	r.pass(10 * time.Second)
	r.phase("node-1", health.PhaseHealthy)
	require.Len(t, r.executor.reboots, 1)
}

// A node that is healthy after the wait without another boot needed no restart.
func TestRestartWithoutEffectOfAHealthyNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, "node-1")
	r.ready("node-1", corev1.ConditionFalse)
	r.pass(6 * time.Minute)
	r.ready("node-1", corev1.ConditionTrue)
	r.pass(9 * time.Minute)
	r.phase("node-1", health.PhaseWaitingReboot)
	r.pass(2 * time.Minute)
	r.phase("node-1", health.PhaseHealthy)
	require.Len(t, r.executor.reboots, 1)
}

// In monitor-only mode, everything happens but the restarts, and they do not count.
func TestMonitorOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, "node-1")
	r.settings.monitorOnly = true
	r.ready("node-1", corev1.ConditionFalse)
	r.pass(26 * time.Minute)
	require.Empty(t, r.executor.reboots)
	require.Equal(t, 2, r.actions("node-1", actionReboot, modeMonitor), "as often as it would")
	require.Zero(t, r.actions("node-1", actionReboot, modeActive))
	require.Equal(t, 2, strings.Count(r.log.String(), "would restart the node"))
	r.phase("node-1", health.PhaseDrain)

	r.settings.monitorOnly = false
	r.start()
	r.pass(10 * time.Second)
	require.Len(t, r.executor.reboots, 1, "the first real restart, at once because the fault is old")
}

// A node that stays unhealthy restarts again after the wait, and then needs an operator.
func TestRetryThenDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, "node-1")
	r.ready("node-1", corev1.ConditionFalse)
	r.pass(15 * time.Minute)
	require.Len(t, r.executor.reboots, 1)
	r.booted("node-1", "boot-2") // restarted, and still not ready
	r.pass(10*time.Minute + 10*time.Second)
	require.Len(t, r.executor.reboots, 2)
	r.pass(10 * time.Minute)
	r.phase("node-1", health.PhaseDrain)
	r.pass(3 * time.Hour)
	require.Len(t, r.executor.reboots, 2)
	require.Equal(t, 1, strings.Count(r.log.String(), "restarts did not repair the node"))

	r.ready("node-1", corev1.ConditionTrue)
	r.pass(10 * time.Second)
	r.phase("node-1", health.PhaseHealthy)
	r.ready("node-1", corev1.ConditionFalse)
	r.pass(time.Hour)
	require.Len(t, r.executor.reboots, 2, "a node that fails again has no more restarts for a day")
	r.phase("node-1", health.PhaseDrain)
}

// The loss of GPUs is timed from the loss, not from the last change of Ready, and a node with GPUs
// has 40 minutes after a restart.
func TestGPULoss(t *testing.T) {
	t.Parallel()
	r := newRig(t, "gpu-1", "cpu-1")
	r.gpus("gpu-1", "8", 8)
	r.pass(2 * time.Hour)
	r.phase("gpu-1", health.PhaseHealthy)
	r.gpus("gpu-1", "8", 7)
	r.pass(10 * time.Minute)
	require.Empty(t, r.executor.reboots)
	require.Positive(t, testutil.ToFloat64(r.agent.metrics.checks.WithLabelValues("gpu-1", "gpu", health.ReasonGPUCountMismatch)))
	r.pass(10 * time.Second)
	require.Equal(t, []string{"gpu-1"}, r.executor.reboots)
	r.gpus("gpu-1", "8", 0)
	r.pass(39 * time.Minute)
	require.Len(t, r.executor.reboots, 1)
	r.pass(2 * time.Minute)
	require.Len(t, r.executor.reboots, 2)
	require.Positive(t, testutil.ToFloat64(r.agent.metrics.checks.WithLabelValues("gpu-1", "gpu", health.ReasonNoAllocatableGPU)))
	r.phase("cpu-1", health.PhaseHealthy)
}

// Each checker has its own threshold and its own clock: a flap of Ready does not inherit the time of
// another fault.
func TestThresholds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		fail func(r *rig)
		at   time.Duration
	}{
		{"node_ready", func(r *rig) { r.ready("node-1", corev1.ConditionFalse) }, 5 * time.Minute},
		{"gpu", func(r *rig) { r.gpus("node-1", "4", 3) }, 10 * time.Minute},
		{"disk_pressure", func(r *rig) {
			r.condition("node-1", corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure")
		}, 30 * time.Minute},
		{"cilium", func(r *rig) {
			r.condition("node-1", corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "CiliumIsUp")
		}, 10 * time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "node-1")
			r.pass(time.Minute)
			test.fail(r)
			r.pass(test.at)
			require.Empty(t, r.executor.reboots)
			r.pass(10 * time.Second)
			require.Len(t, r.executor.reboots, 1)

			off := newRig(t, "node-1")
			off.settings.checkers = checkers([]string{test.name})
			test.fail(off)
			off.pass(time.Hour)
			require.Empty(t, off.executor.reboots, "switched off")
		})
	}
	t.Run("another CNI", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "node-1")
		r.condition("node-1", corev1.NodeNetworkUnavailable, corev1.ConditionTrue, "FlannelIsDown")
		r.pass(time.Hour)
		r.phase("node-1", health.PhaseHealthy)
	})
	t.Run("a flap", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "node-1")
		r.condition("node-1", corev1.NodeDiskPressure, corev1.ConditionTrue, "KubeletHasDiskPressure")
		r.pass(20 * time.Minute)
		r.ready("node-1", corev1.ConditionFalse)
		r.pass(time.Minute)
		r.ready("node-1", corev1.ConditionTrue)
		r.pass(8 * time.Minute)
		require.Empty(t, r.executor.reboots)
	})
}

// A refused restart does not count and does not stop the others; a restart whose outcome is unknown
// counts.
func TestFailedRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.settings.breakerOff = true
	r.executor.before = func(node string) error {
		switch node {
		case "a":
			return fmt.Errorf("no such instance: %w", ErrNotRebooted)
		case "b":
			return errors.New("timeout")
		}
		return nil
	}
	for _, name := range []string{"a", "b", "c"} {
		r.ready(name, corev1.ConditionFalse)
	}
	r.pass(5*time.Minute + 10*time.Second)
	require.Equal(t, []string{"a", "b", "c"}, r.executor.reboots)
	r.phase("a", health.PhaseUnhealthy)
	r.phase("b", health.PhaseWaitingReboot)
	require.InDelta(t, 1, testutil.ToFloat64(r.agent.metrics.failures.WithLabelValues("a", actionReboot)), 0)
	require.InDelta(t, 2, testutil.ToFloat64(r.agent.metrics.errors.WithLabelValues(errorAction)), 0)
	r.pass(50 * time.Second)
	require.Len(t, r.executor.reboots, 3)
	r.executor.before = nil
	r.pass(20 * time.Second)
	require.Equal(t, []string{"a", "b", "c", "a"}, r.executor.reboots, "only the refused one is repeated")
	r.phase("a", health.PhaseWaitingReboot)
}

// Only so many nodes restart at the same time.
func TestBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b", "c")
	r.settings.maxRebooting = 1
	for _, name := range []string{"c", "b"} {
		r.ready(name, corev1.ConditionFalse)
		r.pass(time.Minute)
	}
	r.pass(8 * time.Minute)
	require.Equal(t, []string{"c"}, r.executor.reboots, "the longest unhealthy one")
	require.Equal(t, 1, strings.Count(r.log.String(), "as many nodes as allowed are restarting"))
	r.booted("c", "boot-2")
	r.ready("c", corev1.ConditionTrue)
	r.pass(20 * time.Second)
	require.Equal(t, []string{"c", "b"}, r.executor.reboots)

	none := newRig(t, "a")
	none.settings.maxRebooting = 0
	none.ready("a", corev1.ConditionFalse)
	none.pass(time.Hour)
	require.Empty(t, none.executor.reboots)
	never := newRig(t, "a")
	never.settings.maxReboots = 0
	never.ready("a", corev1.ConditionFalse)
	never.pass(time.Hour)
	require.Empty(t, never.executor.reboots)
	never.phase("a", health.PhaseDrain)
}

// An agent that starts while a node restarts continues: it neither restarts the node again nor loses
// the time of faults of others.
func TestProgramRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b")
	r.ready("a", corev1.ConditionFalse)
	r.pass(4 * time.Minute)
	r.ready("b", corev1.ConditionFalse)
	r.executor.before = func(string) error {
		stored, err := r.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), recordName, metav1.GetOptions{})
		require.NoError(t, err)
		require.Contains(t, stored.Data["a"], `"WaitingReboot"`, "reserved before the request")
		return nil
	}
	r.pass(2 * time.Minute)
	require.Equal(t, []string{"a"}, r.executor.reboots)
	r.executor.before = nil
	for range 3 {
		r.start()
		r.pass(70 * time.Second)
	}
	r.phase("a", health.PhaseWaitingReboot)
	require.Equal(t, []string{"a", "b"}, r.executor.reboots, "b had its 5 minutes over the restarts")
	r.pass(7 * time.Minute)
	require.Equal(t, []string{"a", "b", "a"}, r.executor.reboots)
	r.start()
	r.pass(15 * time.Minute)
	require.Len(t, r.executor.reboots, 4, "two of each node")
	r.phase("a", health.PhaseDrain)
	r.start()
	r.pass(time.Hour)
	require.Len(t, r.executor.reboots, 4)
}

// A process that is no longer the leader has no series of nodes, and nothing is written about a node
// that recovered.
func TestEndOfTheLead(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	r.ready("a", corev1.ConditionFalse)
	r.pass(6 * time.Minute)
	r.booted("a", "boot-2")
	r.ready("a", corev1.ConditionTrue)
	r.pass(11 * time.Minute)
	r.client.ClearActions()
	r.pass(10 * time.Minute)
	for _, action := range r.client.Actions() {
		require.NotEqual(t, "configmaps", action.GetResource().Resource)
	}
	require.Positive(t, testutil.CollectAndCount(r.agent.metrics.phase))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.agent.run(ctx)
	require.Zero(t, testutil.CollectAndCount(r.agent.metrics.phase))
	r.pass(time.Minute)
	r.phase("a", health.PhaseHealthy)
	require.Len(t, r.executor.reboots, 1)
}

// A time in which the program did not run is no part of a fault.
func TestLongStop(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	r.ready("a", corev1.ConditionFalse)
	r.pass(time.Minute)
	r.at = r.at.Add(time.Hour)
	r.start()
	r.pass(3 * time.Minute)
	require.Empty(t, r.executor.reboots)
	r.pass(3 * time.Minute)
	require.Len(t, r.executor.reboots, 1)
}

// Without the record nothing restarts: it does not exist, cannot be read, or another process wrote it.
func TestRecordFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	fail := true
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, recordName, errors.New("changed"))
	r.client.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return fail, nil, conflict })
	r.ready("a", corev1.ConditionFalse)
	r.pass(20 * time.Minute)
	require.Empty(t, r.executor.reboots)
	require.Positive(t, testutil.ToFloat64(r.agent.metrics.errors.WithLabelValues(errorState)))
	fail = false
	r.pass(6 * time.Minute)
	require.Len(t, r.executor.reboots, 1)

	stored, err := r.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), recordName, metav1.GetOptions{})
	require.NoError(t, err)
	stored.Data["a"] = `{"state":{"phase":"Rebooted"}}`
	_, err = r.client.CoreV1().ConfigMaps(namespace).Update(t.Context(), stored, metav1.UpdateOptions{})
	require.NoError(t, err)
	r.start()
	r.pass(time.Hour)
	require.Len(t, r.executor.reboots, 1)
	require.Contains(t, r.log.String(), "delete the entry")
}

// A node that leaves the cluster has no series. Its successor of the same name starts without a history.
func TestGoneNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b")
	r.ready("a", corev1.ConditionFalse)
	r.pass(6 * time.Minute)
	r.phase("a", health.PhaseWaitingReboot)
	count := func(node string) (n int) {
		families, err := r.reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "node" && l.GetValue() == node {
						n++
					}
				}
			}
		}
		return n
	}
	require.Positive(t, count("a"))
	require.NoError(t, r.client.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	r.pass(10 * time.Second)
	require.Zero(t, count("a"))
	require.Positive(t, count("b"))

	r.create("a")
	r.pass(10 * time.Second)
	r.phase("a", health.PhaseHealthy)
	r.ready("a", corev1.ConditionFalse)
	r.pass(5*time.Minute + 10*time.Second)
	require.Equal(t, []string{"a", "a"}, r.executor.reboots)
	stored, err := r.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), recordName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, stored.Data["a"], `"reboots":1`)
}

// What is known just before the restart decides.
func TestBrakes(t *testing.T) {
	t.Parallel()
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "a")
		r.change("a", func(n *corev1.Node) { n.Labels = map[string]string{heldLabel: heldValue} })
		r.ready("a", corev1.ConditionFalse)
		r.pass(time.Hour)
		require.Empty(t, r.executor.reboots)
		r.change("a", func(n *corev1.Node) { n.Labels = nil })
		r.pass(10 * time.Second)
		require.Len(t, r.executor.reboots, 1)
	})
	t.Run("recovered a moment ago", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "a")
		r.ready("a", corev1.ConditionFalse)
		r.start()
		stale, err := r.agent.list()
		require.NoError(t, err)
		r.agent.list = func() ([]*corev1.Node, error) { return stale, nil }
		r.ready("a", corev1.ConditionTrue)
		r.pass(time.Hour)
		require.Empty(t, r.executor.reboots)
	})
	t.Run("no condition", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, "a")
		r.change("a", func(n *corev1.Node) { n.Status.Conditions = nil })
		r.pass(time.Hour)
		r.phase("a", health.PhaseUnknown)
		require.Empty(t, r.executor.reboots)
	})
}

// Without an executor nothing happens, and nothing fails.
func TestNopExecutor(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	r.start()
	a := newAgent(r.client, namespace, r.settings, r.agent.log, r.agent.metrics, withExecutor(nil))
	require.Equal(t, NewNopExecutor(), a.executor)
	require.NoError(t, a.executor.Reboot(t.Context(), "a"))
}

// Reasons come from nodes: a label never has more than some values.
func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	for i := range 100 {
		r.condition("a", corev1.NodeReady, corev1.ConditionFalse, fmt.Sprintf("Reason%d", i))
		r.pass(10 * time.Second)
	}
	r.agent.metrics.checked("a", "other", "not a token")
	require.Equal(t, maxResults+2, testutil.CollectAndCount(r.agent.metrics.checks))
	require.InDelta(t, 100-maxResults, testutil.ToFloat64(r.agent.metrics.checks.WithLabelValues("a", "node_ready", resultOther)), 0)
}
