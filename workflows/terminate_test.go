package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/harness"
)

// created is a world whose provider created the node's machine.
func created(prior lifecycle.NodeState) *world {
	w := newWorld(prior)
	w.creates = true
	return w
}

// refuses is a provider's answer that only a person can change.
func refuses() error { return schema.NewError(schema.KindInvalidRequest, "the provider refuses") }

func TestTerminate(t *testing.T) {
	t.Parallel()
	for _, from := range []lifecycle.NodeState{lifecycle.NodeActive, lifecycle.NodeOffline, lifecycle.NodeRetired, lifecycle.NodeEnrolling} {
		t.Run("deletes the machine of a node that is "+string(from)+", and keeps the node", func(t *testing.T) {
			t.Parallel()
			b := setup(t, lifecycle.ActionTerminate, created(from))
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Equal(t, lifecycle.NodeTerminating, b.world.claimed)
			require.Equal(t, []string{"claim", "advance teardown", "ledger", "release", "released", "ledger", "finish completed"}, b.world.story())
			require.Equal(t, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRegistered,
				Instance: lifecycle.InstanceTerminated, Outcome: "terminated; the node can be provisioned again"}, *b.world.finished)
		})
	}

	t.Run("parks while the provider refuses, and continues after a retry", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["release"] = refuses()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.at(time.Hour, func() {
			require.Equal(t, lifecycle.AttentionProvider, b.status().Operation.Stuck.WaitingOn)
			w.heal("release")
			b.decide(lifecycle.DecisionRetry, "the quota is back")
		})
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
		require.Empty(t, w.ledger)
	})

	t.Run("parks while the provider deletes the machine for long, and continues without a decision", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.deleting = true
		b := setup(t, lifecycle.ActionTerminate, w)
		b.at(time.Hour, func() {
			stuck := b.status().Operation.Stuck
			require.Equal(t, machines.ReasonDeleting, stuck.Reason)
			require.Equal(t, lifecycle.AttentionProvider, stuck.WaitingOn)
			require.Contains(t, stuck.Cause, "Check the machine at its provider")
			require.NotNil(t, stuck.Retrying)
			w.deleted = true
		})
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Empty(t, b.resolved)
		require.Empty(t, w.ledger)
	})

	t.Run("a forced teardown says that the machine may exist", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["release"] = refuses()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.decideAt(time.Hour, lifecycle.DecisionForce)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, "terminated; the node can be provisioned again; its provider did not confirm the teardown", w.finished.Outcome)
		require.Len(t, w.ledger, 1, "the ledger keeps the machine")
	})

	t.Run("a forced teardown asks for every machine", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.ledger = append([]activities.Resource{{ResourceID: "r0", Kind: "instance", Provider: "manual"}}, w.ledger...)
		w.fail["release"] = refuses()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.decideAt(time.Hour, lifecycle.DecisionForce)
		require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
		require.Equal(t, 4, w.count("release"), "two in the first try and two in the forced one")
		require.Len(t, w.ledger, 2, "the ledger keeps the machines")
	})
}

// TestCancelOfATermination: the provider decides whether the node has its machine after a cancel.
func TestCancelOfATermination(t *testing.T) {
	t.Parallel()
	// canceled cancels after an hour, because the teardown does not end.
	canceled := func(t *testing.T, w *world, before func()) {
		t.Helper()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.at(time.Hour, func() {
			before()
			b.decide(lifecycle.DecisionCancel, "wrong node")
		})
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, []error{nil}, b.resolved)
	}

	t.Run("restores the node and the instance if the machine exists", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeDrained)
		w.fail["release"] = refuses()
		canceled(t, w, func() {})
		require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeDrained, Instance: lifecycle.InstanceRunning,
			Outcome: "rolled back"}, *w.finished, "the instance has its state of before")
		require.Contains(t, w.story(), "describe")
	})

	for prior, want := range map[lifecycle.NodeState]lifecycle.InstanceState{lifecycle.NodeActive: lifecycle.InstanceRunning,
		lifecycle.NodeDrained: lifecycle.InstanceDraining, lifecycle.NodeRegistered: lifecycle.InstancePending} {
		t.Run("after an abandoned termination of a node that was "+string(prior)+" derives the instance's state from the node's", func(t *testing.T) {
			t.Parallel()
			w := created(prior)
			w.instance = &lifecycle.Instance{InstanceID: "r1", Provider: "manual", State: lifecycle.InstanceTerminating}
			w.fail["release"] = refuses()
			canceled(t, w, func() {})
			require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, Node: prior, Instance: want, Outcome: "rolled back"}, *w.finished)
		})
	}

	t.Run("ends as terminated if the machine is gone", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["released"] = schema.NewError(schema.KindInvalidRequest, "the ledger refuses")
		canceled(t, w, func() { w.heal("released") })
		require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, Instance: lifecycle.InstanceTerminated,
			Outcome: "canceled after the machine was deleted; the node can be provisioned again"}, *w.finished)
		require.Equal(t, lifecycle.NodeRegistered, w.document.Node.State)
		require.Equal(t, 1, w.count("release"), "the cancel deletes nothing")
	})

	t.Run("ends as terminated if only another machine is left", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.ledger = []activities.Resource{{ResourceID: "r2", Kind: "instance", Provider: "manual"}}
		w.fail["release"] = refuses()
		canceled(t, w, func() {})
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
		require.Len(t, w.ledger, 1)
	})

	t.Run("waits for a deletion that has begun", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["release"] = refuses()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.at(time.Hour, func() {
			w.deleting = true
			b.decide(lifecycle.DecisionCancel, "wrong node")
		})
		b.at(time.Hour+30*time.Second, func() {
			require.Nil(t, w.finished)
			w.deleted = true
		})
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
		require.Empty(t, w.parks[1:])
	})

	t.Run("may be ended without an answer of the provider", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["release"], w.fail["describe"] = refuses(), refuses()
		b := setup(t, lifecycle.ActionTerminate, w)
		b.decideAt(time.Hour, lifecycle.DecisionCancel)
		b.decideAt(2*time.Hour, lifecycle.DecisionSkip)
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.Equal(t, lifecycle.PhaseUndoTeardown, w.parks[1].Phase)
		require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		require.Empty(t, w.finished.Instance, "the store gives it the state that follows from the node's")
	})

	t.Run("restores the node if there is no instance", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeRegistered)
		w.instance = &lifecycle.Instance{}
		w.fail["release"] = refuses()
		canceled(t, w, func() {})
		require.Equal(t, activities.Finish{Status: lifecycle.OperationCanceled, Node: lifecycle.NodeRegistered, Outcome: "rolled back"}, *w.finished)
		require.NotContains(t, w.story(), "describe")
		require.Len(t, w.ledger, 1)
	})

	t.Run("before the claim asks nothing", func(t *testing.T) {
		t.Parallel()
		w := created(lifecycle.NodeActive)
		w.fail["claim"] = errDown
		b := setup(t, lifecycle.ActionTerminate, w)
		b.decideAt(10*time.Second, lifecycle.DecisionCancel)
		b.at(20*time.Second, func() { w.heal("claim") })
		require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
		require.NotContains(t, w.story(), "release")
		require.Equal(t, lifecycle.InstanceRunning, w.finished.Instance)
	})
}

// TestForgedVerification: a client that ends the question to the provider in Temporal does not fence
// the operation and does not end the instance.
func TestForgedVerification(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := created(lifecycle.NodeActive)
			w.fail["release"] = refuses()
			b := setup(t, lifecycle.ActionTerminate, w)
			tries := 0
			b.env.OnActivity(machine.VerifyMachine, anything, anything).Return(func(ctx context.Context, in activities.MachineInput) error {
				if tries++; tries == 1 {
					return forged
				}
				return (&activities.Machine{Ledger: w, Providers: w.sources()}).VerifyMachine(ctx, in)
			})
			b.decideAt(time.Hour, lifecycle.DecisionCancel)
			b.at(2*time.Hour, func() {
				if !b.env.IsWorkflowCompleted() {
					b.decide(lifecycle.DecisionRetry, "because")
				}
			})
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Equal(t, lifecycle.InstanceRunning, w.finished.Instance)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
		})
	}
}

// TestTerminationOfAnotherVersion: a worker that lacks the undo of the run's plan parks it, and a plan
// of before the undo restores the node.
func TestTerminationOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]*lifecycle.PhaseSpec{
		"without an undo": nil,
		"with an unknown undo": {Name: "undo-of-another-version", Title: "Unknown", Budget: time.Minute,
			Choices: []lifecycle.Option{{Decision: lifecycle.DecisionSkip, Does: "Continue without it", Harm: lifecycle.HarmNone}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := created(lifecycle.NodeActive)
			w.fail["release"] = refuses()
			b := setup(t, lifecycle.ActionTerminate, w)
			b.env.OnActivity(record.ClaimNode, anything, anything).Return(
				func(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
					claim, err := (&activities.Record{Records: w}).ClaimNode(ctx, r)
					claim.Plan.Undo = undo
					return claim, err
				})
			b.decideAt(time.Hour, lifecycle.DecisionCancel)
			b.at(2*time.Hour, func() {
				if !b.env.IsWorkflowCompleted() {
					require.Equal(t, lifecycle.ReasonStepUnknown, b.status().Operation.Stuck.Reason)
					b.decide(lifecycle.DecisionSkip, "because")
				}
			})
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Equal(t, lifecycle.NodeActive, w.finished.Node)
			require.Empty(t, w.finished.Instance)
		})
	}
}

// TestResetOfATermination: a canceled termination whose run is reset to its beginning continues with
// the question to the provider, and deletes nothing.
func TestResetOfATermination(t *testing.T) {
	w := created(lifecycle.NodeActive)
	w.fail["release"], w.fail["describe"] = refuses(), refuses()
	r, _ := onServer(t, w)
	defer r.startWorker()()
	r.submit(lifecycle.ActionTerminate)
	r.until(lifecycle.OperationParked)
	r.decide(lifecycle.DecisionCancel)
	harness.Eventually(t, "the undo parks", func() bool { return w.count("park "+lifecycle.PhaseUndoTeardown) == 1 })
	w.heal("release")
	w.heal("describe")
	before := w.count("release")
	r.reset()
	require.Equal(t, "rolled back", r.until(lifecycle.OperationCanceled).Outcome)
	require.Equal(t, before, w.count("release"))
	require.False(t, w.deleted)
	require.Equal(t, lifecycle.InstanceRunning, w.finished.Instance)
}
