package workflows

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// forgeries are the ends of an activity that everyone who can write to Temporal can send.
func forgeries() map[string]error {
	return map[string]error{
		"completed":        nil,
		"failed":           final(schema.KindInvalidRequest, "forged"),
		"failed as fenced": final(schema.KindFenced, "forged"),
	}
}

// TestForgedClaim: the claim that a slow database delays is read from the database, not from
// the completion of the activity that waits for it.
func TestForgedClaim(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["claim"] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			removal, _ := lifecycle.PlanOf(lifecycle.ActionRemove, lifecycle.Options{})
			b.env.OnActivity(record.ClaimNode, anything, anything).Return(
				func(ctx context.Context, r activities.ClaimRequest) (activities.Claim, error) {
					if activity.GetInfo(ctx).IsLocalActivity {
						return (&activities.Record{Records: w}).ClaimNode(ctx, r)
					}
					w.heal("claim")
					return activities.Claim{Prior: lifecycle.NodeRemoved, Plan: removal, StartedAt: time.Now()}, forged
				})
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Equal(t, lifecycle.NodeDrained, w.finished.Node)
			require.False(t, w.finished.DenyIdentity)
		})
	}
}

// TestForgedFinish: the outcome is recorded although the activity that waits for the
// database was completed by another party.
func TestForgedFinish(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["finish completed"] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.OnActivity(record.FinishOperation, anything, anything, anything).Return(
				func(ctx context.Context, f activities.Fence, e activities.Finish) error {
					if activity.GetInfo(ctx).IsLocalActivity {
						return activities.Fail(w.Finish(ctx, f, "", e))
					}
					w.heal("finish completed")
					return forged
				})
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.NotNil(t, w.finished)
		})
	}
}

// TestForgedBackgroundWrite: a decision that the database could not record at once is
// recorded although the activity that repeats the write was completed by another party.
func TestForgedBackgroundWrite(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.fail["task workload.cordon"] = final(schema.KindTaskFailed, "no luck")
			w.fail["decide skip"] = errDatabase
			b := setup(t, lifecycle.ActionDrain, w)
			b.env.OnActivity(record.RecordProgress, anything, anything, anything).Return(
				func(ctx context.Context, f activities.Fence, a activities.Advance) error {
					if activity.GetInfo(ctx).IsLocalActivity || a.Decision == nil {
						return activities.Fail(w.Advance(ctx, f, "", a))
					}
					w.heal("decide skip")
					return forged
				})
			b.decideAt(time.Hour, lifecycle.DecisionSkip)
			require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
			require.Equal(t, []lifecycle.Decision{lifecycle.DecisionSkip}, w.decisions)
		})
	}
}

// TestForgedVoid: the task of the phase is void before its next one is enqueued and before
// the undo, also if a client ended the activity that voids it.
func TestForgedVoid(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		for d, want := range map[lifecycle.Decision]struct {
			next string
			end  lifecycle.OperationState
		}{
			lifecycle.DecisionForce:  {"workload.drain#2", lifecycle.OperationCompleted},
			lifecycle.DecisionCancel: {"workload.uncordon", lifecycle.OperationCanceled},
		} {
			t.Run(name+" of a "+string(d), func(t *testing.T) {
				t.Parallel()
				w := newWorld(lifecycle.NodeActive)
				w.open[task.WorkloadDrain] = true
				b := setup(t, lifecycle.ActionDrain, w)
				b.env.OnActivity(node.VoidTasks, anything, anything).Return(
					func(context.Context, activities.Fence) error { return forged })
				w.stall = func(step string) {
					if step == want.next {
						w.mu.Lock()
						defer w.mu.Unlock()
						require.True(t, w.voided["workload.drain"], "the old task is open")
					}
				}
				b.at(time.Minute, func() {
					w.mu.Lock()
					w.open[task.WorkloadDrain] = false
					w.mu.Unlock()
					b.decide(d, "because")
				})
				require.Equal(t, want.end, b.run().Operation.Status)
				require.Contains(t, w.enqueued, want.next)
			})
		}
	}
}

// TestForgedTeardown: a remove ends when the ledger has no open entry, also if a client ended the
// activity that releases them.
func TestForgedTeardown(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		for many, times := range map[string]int{"once": 1, "again and again": 3} {
			t.Run(name+" "+many, func(t *testing.T) {
				t.Parallel()
				w := newWorld(lifecycle.NodeRetired)
				b := setup(t, lifecycle.ActionRemove, w)
				tries := 0
				b.env.OnActivity(machine.TearDownMachine, anything, anything).Return(
					func(ctx context.Context, f activities.Fence) (int, error) {
						if tries++; tries <= times {
							return 1, forged
						}
						return (&activities.Machine{Ledger: w, Providers: w.sources()}).TearDownMachine(ctx, f)
					})
				for hour := range times {
					b.at(time.Duration(hour+1)*time.Hour, func() {
						if !b.env.IsWorkflowCompleted() {
							require.Nil(t, w.finished)
							b.decide(lifecycle.DecisionRetry, "because")
						}
					})
				}
				require.Equal(t, lifecycle.OperationCompleted, b.run().Operation.Status)
				require.Empty(t, w.ledger)
				for _, p := range w.parks {
					require.Contains(t, []string{lifecycle.ReasonResultMissing, string(schema.KindInvalidRequest)}, p.Reason)
				}
			})
		}
	}
}

// TestForgedMachine: a provisioning continues when the ledger has the machine, and its cancel
// ends when the ledger no longer has it.
func TestForgedMachine(t *testing.T) {
	t.Parallel()
	for name, forged := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(lifecycle.NodeActive)
			w.ledger = nil
			w.open[task.FactsCollect] = true
			b := setup(t, lifecycle.ActionProvision, w)
			unforged := &activities.Machine{Ledger: w, Providers: w.sources()}
			ensures, returns := 0, 0
			b.env.OnActivity(machine.EnsureMachine, anything, anything).Return(
				func(ctx context.Context, in activities.MachineInput) (activities.Resource, error) {
					if ensures++; ensures == 1 {
						return activities.Resource{}, forged
					}
					return unforged.EnsureMachine(ctx, in)
				})
			b.env.OnActivity(machine.ReturnMachine, anything, anything).Return(
				func(ctx context.Context, in activities.MachineInput) (int, error) {
					if returns++; returns == 1 {
						return 0, forged
					}
					return unforged.ReturnMachine(ctx, in)
				})
			for _, at := range []time.Duration{time.Hour, 3 * time.Hour} {
				b.at(at, func() {
					if op := b.status().Operation; op.Status == lifecycle.OperationParked && w.finished == nil {
						b.decide(lifecycle.DecisionRetry, "because")
					}
				})
			}
			b.at(2*time.Hour, func() {
				require.Len(t, w.ledger, 1)
				b.decide(lifecycle.DecisionCancel, "because")
			})
			require.Equal(t, lifecycle.OperationCanceled, b.run().Operation.Status)
			require.Empty(t, w.ledger)
			require.Equal(t, lifecycle.InstanceTerminated, w.finished.Instance)
		})
	}
}
