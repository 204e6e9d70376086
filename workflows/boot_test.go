package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestSilentMachine: the provisioning of a machine that does not boot parks with the end of its
// console, without control characters, and continues when the machine enrolls.
func TestSilentMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(lifecycle.NodeRegistered)
	w.creates, w.console = true, "Kernel panic\x1b[2J - not syncing "+trust.TokenPrefix+"secret\n"
	b := setup(t, lifecycle.ActionProvision, w)
	parked := false
	b.at(time.Hour, func() {
		o := b.status().Operation
		require.Equal(t, lifecycle.OperationParked, o.Status)
		require.Equal(t, lifecycle.ReasonMachineSilent, o.Stuck.Reason)
		require.Equal(t, lifecycle.AttentionAgent, o.Stuck.WaitingOn)
		require.Equal(t, "the machine's agent sent no request within 10m", o.Stuck.Message, "the audit trail keeps it")
		require.Contains(t, o.Stuck.Cause, "the machine is running; its console ends with: Kernel panic")
		require.NotContains(t, o.Stuck.Cause, "\x1b")
		require.NotContains(t, o.Stuck.Cause, "secret")
		require.NotNil(t, o.Stuck.Retrying)
		parked = true
	})
	b.enrollAt(2*time.Hour, lifecycle.EventFirstPoll, activities.Enrollment{BundleIssued: true, TokenClaimed: true, Polled: true})
	require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
	require.True(t, parked)
}

// TestProblemsOfProviders: a problem that the provider reports says who must act.
func TestProblemsOfProviders(t *testing.T) {
	t.Parallel()
	for reason, party := range map[string]lifecycle.Attention{machines.ReasonQuota: lifecycle.AttentionOperator, machines.ReasonCapacity: lifecycle.AttentionProvider,
		machines.ReasonAuth: lifecycle.AttentionOperator, machines.ReasonFailed: lifecycle.AttentionProvider} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeRegistered)
			w.creates = true
			w.fail["ensure"] = machines.Errorf(reason, "no luck")
			b := setup(t, lifecycle.ActionProvision, w)
			b.at(time.Minute, func() {
				stuck := b.status().Operation.Stuck
				require.NotNil(t, stuck)
				require.Equal(t, reason, stuck.Reason)
				require.Equal(t, party, stuck.WaitingOn)
				require.Contains(t, stuck.Message, "no luck")
				w.mu.Lock()
				delete(w.fail, "ensure")
				w.mu.Unlock()
				b.decide(lifecycle.DecisionCancel, "test")
			})
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		})
	}
}
