package clusteragent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestDrainWithoutRestarts: a node whose restarts did not help is left to an operator also once no further
// restart is allowed.
func TestDrainWithoutRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a")
	r.settings.maxReboots = 1
	r.ready("a", corev1.ConditionFalse)
	r.pass(6 * time.Minute)
	require.Equal(t, []string{"a"}, r.executor.reboots)
	r.settings.maxRebooting = 0
	r.start()
	r.pass(10 * time.Minute)
	r.phase("a", health.PhaseDrain)
}

// TestRestartThatEndedWithoutEffect: a node whose time after a restart has passed no longer counts among those that
// restart, although its own repair waits for an operator.
func TestRestartThatEndedWithoutEffect(t *testing.T) {
	t.Parallel()
	r := newRig(t, "a", "b")
	r.settings.maxRebooting = 1
	r.ready("a", corev1.ConditionFalse)
	r.pass(6 * time.Minute)
	r.change("a", func(n *corev1.Node) { n.Labels = map[string]string{heldLabel: heldValue} })
	r.ready("b", corev1.ConditionFalse)
	r.pass(8 * time.Minute)
	require.Equal(t, []string{"a"}, r.executor.reboots, "it may still boot")
	r.pass(2 * time.Minute)
	require.Equal(t, []string{"a", "b"}, r.executor.reboots)
	r.phase("a", health.PhaseWaitingReboot)
}

// TestRecordIsBounded: a record that no ConfigMap can hold is not stored in part.
func TestRecordIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stored := &record{client: r.client, namespace: namespace}
	entries := map[string]entry{}
	for i := range 10 {
		entries[fmt.Sprintf("node-%d", i)] = entry{UID: strings.Repeat("u", maxRecord/10)}
	}
	err := stored.save(t.Context(), entries, recovery.BreakerState{})
	require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
	require.ErrorContains(t, err, "the states of 10 nodes need ")
	loaded, _, err := stored.load(t.Context())
	require.NoError(t, err)
	require.Empty(t, loaded)
	delete(entries, "node-0")
	require.NoError(t, stored.save(t.Context(), entries, recovery.BreakerState{}))
}
