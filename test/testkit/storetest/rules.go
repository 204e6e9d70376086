package storetest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

const over = lifecycle.ReasonOperationOver

func claimRules() []rule {
	again := func(change func(*activities.ClaimRequest)) func(b *bench) error {
		return func(b *bench) error {
			first := b.drain()
			b.request.StartWithinSeconds = 0
			r := b.request
			change(&r)
			c, err := b.Claim(b.t.Context(), r)
			return must(err, c.Fence == first, "the second claim is another one")
		}
	}
	return []rule{
		{name: "claim again", do: again(func(*activities.ClaimRequest) {})},
		{name: "claim again after its time", do: again(func(r *activities.ClaimRequest) { r.StartWithinSeconds = 1 })},
		{name: "claim of another run", do: again(func(r *activities.ClaimRequest) { r.RunID = schema.NewID() }),
			kind: schema.KindInvalidRequest, reason: "duplicate_operation"},
		{name: "claim in the wrong state", state: lifecycle.NodeRetired, kind: schema.KindInvalidRequest, reason: "invalid_state",
			do: func(b *bench) error { _, err := b.claim(lifecycle.ActionDrain); return err }},
		{name: "claim after its time", kind: schema.KindClaimExpired, do: func(b *bench) error {
			_, err := b.claim(lifecycle.ActionDrain, func(r *activities.ClaimRequest) {
				r.RunStartedAt, r.StartWithinSeconds = b.Now().Add(-time.Minute), 59
			})
			return err
		}},
		{name: "claim of an older run", kind: schema.KindFenced, reason: "newer_run", do: func(b *bench) error {
			b.drain()
			older := b.started.Add(-time.Minute)
			_, err := b.claim(lifecycle.ActionDrain, func(r *activities.ClaimRequest) { r.RunStartedAt = older })
			return err
		}},
		{name: "claim under a foreign workflow ID", kind: schema.KindInvalidRequest, reason: "foreign_workflow_id", do: func(b *bench) error {
			_, err := b.claim(lifecycle.ActionDrain, func(r *activities.ClaimRequest) { r.WorkflowID = "evil-2" })
			return err
		}},
		{name: "claim over an open operation starts in the state before it", do: func(b *bench) error {
			b.drain()
			c, err := b.claim(lifecycle.ActionQuarantine)
			return must(err, c.Prior == lifecycle.NodeActive && c.Fence.OpSeq == 2, "the claim starts in "+string(c.Prior))
		}},
		{name: "a cordon is that of an operation that began without one and was superseded", do: func(b *bench) error {
			first, err := b.claim(lifecycle.ActionDrain)
			second, err2 := b.claim(lifecycle.ActionDrain)
			third, err3 := b.claim(lifecycle.ActionQuarantine)
			return must(cmp.Or(err, err2, err3), !first.LeftCordon && second.LeftCordon && third.LeftCordon, "the claims over an open operation")
		}},
		{name: "a cordon is not that of an operation that ended", do: func(b *bench) error {
			b.ended()
			c, err := b.claim(lifecycle.ActionReactivate)
			return must(err, !c.LeftCordon, "the claim after an operation")
		}},
		{name: "claim of a reissue during a retire", kind: schema.KindOperationInProgress, reason: "retire_open", do: func(b *bench) error {
			if _, err := b.claim(lifecycle.ActionRetire); err != nil {
				return err
			}
			_, err := b.claim(lifecycle.ActionReissueEnrollment)
			return err
		}},
		{name: "claim of a reissue during a quarantine", do: func(b *bench) error {
			_, err := b.claim(lifecycle.ActionQuarantine)
			if err != nil {
				return err
			}
			c, err := b.claim(lifecycle.ActionReissueEnrollment)
			return must(err, c.Fence.OpSeq == 0, "a reissue holds the node")
		}},
	}
}

func recordRules() []rule {
	decision := activities.Advance{Decision: &lifecycle.ResolveRequest{ID: "d-1", Decision: lifecycle.DecisionRetry, Reason: "because", By: "bob"}}
	return []rule{
		{name: "progress", do: func(b *bench) error { return b.advance(b.drain(), activities.Advance{}) }},
		{name: "progress of an ended operation", kind: schema.KindFenced, reason: over,
			do: func(b *bench) error { return b.advance(b.ended(), activities.Advance{}) }},
		{name: "progress of a superseded operation", kind: schema.KindFenced,
			do: func(b *bench) error { return b.advance(b.superseded(), activities.Advance{}) }},
		{name: "progress of an unknown operation", kind: schema.KindFenced, do: func(b *bench) error {
			f := b.drain()
			f.OperationID = schema.NewID()
			return b.advance(f, activities.Advance{})
		}},
		{name: "decision of an ended operation", kind: schema.KindFenced, reason: over,
			do: func(b *bench) error { return b.advance(b.ended(), decision) }},
		{name: "applied decision of an ended operation", do: func(b *bench) error {
			late := decision
			late.Applied = true
			return b.advance(b.ended(), late)
		}},
		{name: "decision of a superseded operation", kind: schema.KindFenced,
			do: func(b *bench) error { return b.advance(b.superseded(), decision) }},
		{name: "progress after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error { return b.advance(b.undoing(), activities.Advance{Phase: lifecycle.PhaseDrain}) }},
		{name: "decision to retry after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error { return b.advance(b.undoing(), decision) }},
		{name: "decision to cancel after the undo began keeps the undo", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error {
				f := b.undoing()
				cancel := activities.Advance{Decision: &lifecycle.ResolveRequest{ID: "d-2", Decision: lifecycle.DecisionCancel, Reason: "because", By: "bob"}}
				if err := b.advance(f, cancel); err != nil {
					return err
				}
				return b.advance(f, activities.Advance{Phase: lifecycle.PhaseDrain})
			}},
		{name: "progress of the undo", do: func(b *bench) error {
			return b.advance(b.undoing(), activities.Advance{Phase: lifecycle.PhaseUndoCordon})
		}},
		{name: "end as completed after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error { return b.end(b.undoing(), lifecycle.OperationCompleted) }},
		{name: "end as canceled after the undo began",
			do: func(b *bench) error { return b.end(b.undoing(), lifecycle.OperationCanceled) }},
		{name: "end again", do: func(b *bench) error { return b.end(b.ended(), lifecycle.OperationCompleted) }},
		{name: "end as something else", kind: schema.KindFenced, reason: over,
			do: func(b *bench) error { return b.end(b.ended(), lifecycle.OperationCanceled) }},
		{name: "end of a superseded operation", kind: schema.KindFenced,
			do: func(b *bench) error { return b.end(b.superseded(), lifecycle.OperationCompleted) }},
		{name: "end as rejected", kind: schema.KindInvalidRequest,
			do: func(b *bench) error { return b.end(b.drain(), lifecycle.OperationRejected) }},
		{name: "end of an enrollment without a poll", state: lifecycle.NodeRegistered, kind: schema.KindInvalidRequest, reason: "not_enrolled",
			do: func(b *bench) error {
				c, err := b.claim(lifecycle.ActionEnroll)
				if err != nil {
					return err
				}
				return b.end(c.Fence, lifecycle.OperationCompleted)
			}},
		{name: "end of a removal with an open ledger", state: lifecycle.NodeRetired, kind: schema.KindInvalidRequest, reason: "resources_open",
			do: func(b *bench) error { return b.end(b.removal(), lifecycle.OperationCompleted) }},
		{name: "claim of a termination of a machine that the provider did not create", kind: schema.KindInvalidRequest, reason: "no_created_machine",
			do: func(b *bench) error { _, err := b.claim(lifecycle.ActionTerminate); return err }},
		{name: "cancel of a removal with an open ledger", state: lifecycle.NodeRetired,
			do: func(b *bench) error { return b.end(b.removal(), lifecycle.OperationCanceled) }},
		{name: "end of a removal after a forced teardown", state: lifecycle.NodeRetired, do: func(b *bench) error {
			doc := &lifecycle.OperationStatus{}
			doc.Operation.Phases = []lifecycle.Phase{{Name: lifecycle.PhaseTeardown, State: lifecycle.PhaseForced}}
			return b.Finish(b.t.Context(), b.removal(), "", activities.Finish{Status: lifecycle.OperationCompleted, DenyIdentity: true, Document: doc})
		}},
	}
}

// undoRules hold that only the undo continues once it has begun.
func undoRules() []rule {
	const drain = task.WorkloadDrain
	return []rule{
		{name: "task of a phase after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error { _, err := b.prepareIn(lifecycle.PhaseDrain, b.undoing(), drain); return err }},
		{name: "task of a phase that was prepared before the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error {
				f := b.drain()
				row, err := b.prepareIn(lifecycle.PhaseDrain, f, drain)
				if err = cmp.Or(err, b.advance(f, activities.Advance{Phase: lifecycle.PhaseUndoCordon})); err != nil {
					return err
				}
				spec, o := b.spec(f, drain)
				spec.Phase = lifecycle.PhaseDrain
				return b.Enqueue(b.t.Context(), spec, o, row, []byte("{}"))
			}},
		{name: "stored task of a phase after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error {
				f := b.drain()
				b.enqueue(f, drain)
				if err := b.advance(f, activities.Advance{Phase: lifecycle.PhaseUndoCordon}); err != nil {
					return err
				}
				_, err := b.prepareIn(lifecycle.PhaseDrain, f, drain)
				return err
			}},
		{name: "task of the undo", do: func(b *bench) error {
			_, err := b.prepareIn(lifecycle.PhaseUndoCordon, b.undoing(), task.WorkloadUncordon)
			return err
		}},
		{name: "resource after the undo began", kind: schema.KindFenced, reason: lifecycle.ReasonUndoBegan,
			do: func(b *bench) error { _, err := b.plan(b.undoing()); return err }},
	}
}

func taskRules() []rule {
	const drain, probe = task.WorkloadDrain, task.NodeProbe
	return []rule{
		{name: "task of an ended operation", kind: schema.KindFenced, reason: over,
			do: func(b *bench) error { _, err := b.prepare(b.ended(), drain); return err }},
		{name: "task of a superseded operation", kind: schema.KindFenced,
			do: func(b *bench) error { _, err := b.prepare(b.superseded(), drain); return err }},
		{name: "task that was prepared before its operation was superseded", kind: schema.KindFenced, do: func(b *bench) error {
			f := b.drain()
			row, err := b.prepare(f, drain)
			if err != nil {
				return err
			}
			b.drain()
			return b.store(f, drain, row)
		}},
		{name: "task of an abandoned operation", kind: schema.KindServiceUnavailable, reason: "operation_abandoned",
			do: func(b *bench) error { f, row := b.abandoned(drain); return b.store(f, drain, row) }},
		{name: "task of an operation that continues", do: func(b *bench) error {
			f, row := b.abandoned(drain)
			refused := b.store(f, drain, row)
			if err := b.Continue(f.OperationID, b.request.RunID); err != nil {
				return err
			}
			if err := b.store(f, drain, row); err != nil {
				return err
			}
			found, err := b.find(f, drain)
			return must(err, refused != nil && found.Status == task.Pending, "the task was stored before, or it is void")
		}},
		{name: "task again", do: func(b *bench) error {
			f := b.drain()
			first := b.enqueue(f, drain)
			row, err := b.prepare(f, drain)
			return must(err, row.Stored && row.TaskID == first, "the step has another task")
		}},
		{name: "task that was voided", kind: schema.KindFenced, reason: "task_voided", do: func(b *bench) error {
			f := b.drain()
			row, err := b.prepare(f, drain)
			if err == nil {
				err = b.store(f, drain, row)
			}
			if err == nil {
				err = b.Void(b.t.Context(), f)
			}
			if err != nil {
				return err
			}
			return b.store(f, drain, row)
		}},
		{name: "result of no task", kind: schema.KindNotFound, do: func(b *bench) error { _, err := b.find(b.drain(), probe); return err }},
		{name: "result of an open task of a superseded operation", kind: schema.KindFenced, do: func(b *bench) error {
			f := b.drain()
			b.enqueue(f, probe)
			b.drain()
			_, err := b.find(f, probe)
			return err
		}},
	}
}

// firstTaskRules are the rules of the read of an operation's first task of a type.
func firstTaskRules() []rule {
	const drain, probe = task.WorkloadDrain, task.NodeProbe
	return []rule{
		{name: "first task of no operation", kind: schema.KindNotFound, do: func(b *bench) error {
			b.enqueue(b.drain(), drain)
			_, err := b.First(b.t.Context(), b.drain(), drain)
			return err
		}},
		{name: "first task of a type", do: func(b *bench) error {
			f := b.drain()
			b.enqueue(f, probe)
			first := b.enqueue(f, drain)
			if err := b.Void(b.t.Context(), f); err != nil {
				return err
			}
			spec, owner := b.spec(f, drain)
			spec.Step += "#2"
			row, err := b.Prepare(b.t.Context(), spec, owner)
			if err == nil {
				err = b.Enqueue(b.t.Context(), spec, owner, row, []byte(`{}`))
			}
			if err != nil {
				return err
			}
			b.drain() // an operation that was superseded has had its tasks
			found, err := b.First(b.t.Context(), f, drain)
			return must(err, found.TaskID == first && found.Status == task.Canceled, "another task is the first")
		}},
	}
}

// voidRules are the rules of ending open tasks.
func voidRules() []rule {
	const drain = task.WorkloadDrain
	undispatched := func(want bool, before func(b *bench, f activities.Fence)) func(*bench) error {
		return func(b *bench) error {
			f := b.drain()
			before(b, f)
			voided, err := b.VoidUndispatched(b.t.Context(), f, string(task.WorkloadDrain))
			return must(err, voided == want, fmt.Sprintf("VoidUndispatched returned %t", voided))
		}
	}
	return []rule{
		{name: "void of a superseded operation", kind: schema.KindFenced, do: func(b *bench) error { return b.Void(b.t.Context(), b.superseded()) }},
		{name: "void of a task that waits", do: undispatched(true, func(b *bench, f activities.Fence) { b.enqueue(f, drain) })},
		{name: "void of a task that is void", do: undispatched(true, func(b *bench, f activities.Fence) { b.enqueue(f, drain); _ = b.Void(b.t.Context(), f) })},
		{name: "void of a task that was dispatched", do: undispatched(false, func(b *bench, f activities.Fence) {
			b.Dispatch(b.t, b.node, b.enqueue(f, drain))
		})},
		{name: "void of no task", do: undispatched(false, func(*bench, activities.Fence) {})},
	}
}

// reportRules are the rules of a node's reports.
func reportRules() []rule {
	failed := task.Result{Status: task.Failed, Code: schema.KindTaskFailed, Message: "no luck"}
	report := func(before func(b *bench, f activities.Fence, id string)) func(*bench) error {
		return func(b *bench) error {
			f := b.drain()
			id := b.enqueue(f, task.WorkloadDrain)
			failed.LeaseEpoch = b.Dispatch(b.t, b.node, id)
			before(b, f, id)
			return b.Report(b.node, id, failed)
		}
	}
	return []rule{
		{name: "report", do: report(func(*bench, activities.Fence, string) {})},
		{name: "report again", do: report(func(b *bench, _ activities.Fence, id string) { _ = b.Report(b.node, id, failed) })},
		{name: "report of a voided task", kind: schema.KindLeaseLost, do: report(func(b *bench, f activities.Fence, _ string) { _ = b.Void(b.t.Context(), f) })},
		{name: "report of a superseded operation", kind: schema.KindLeaseLost, do: report(func(b *bench, _ activities.Fence, _ string) { b.drain() })},
	}
}

func ledgerRules() []rule {
	with := func(then func(b *bench, f activities.Fence, id string) error) func(*bench) error {
		return func(b *bench) error {
			f := b.drain()
			id, err := b.plan(f)
			if err != nil {
				return err
			}
			return then(b, f, id)
		}
	}
	open := func(b *bench, f activities.Fence, want int) error {
		entries, err := b.Open(b.t.Context(), f)
		return must(err, len(entries) == want, "the ledger has another number of open entries")
	}
	return []rule{
		{name: "plan again", do: with(func(b *bench, f activities.Fence, _ string) error {
			if _, err := b.plan(f); err != nil {
				return err
			}
			return open(b, f, 1)
		})},
		{name: "plan of a superseded operation", kind: schema.KindFenced, do: func(b *bench) error { _, err := b.plan(b.superseded()); return err }},
		{name: "creation again", do: with(func(b *bench, f activities.Fence, id string) error {
			if err := b.Created(b.t.Context(), f, id, "m-1"); err != nil {
				return err
			}
			return b.Created(b.t.Context(), f, id, "m-1")
		})},
		{name: "creation of a second machine", kind: schema.KindInvalidRequest, reason: "resource_mismatch",
			do: with(func(b *bench, f activities.Fence, id string) error {
				if err := b.Created(b.t.Context(), f, id, "m-1"); err != nil {
					return err
				}
				return b.Created(b.t.Context(), f, id, "m-2")
			})},
		{name: "creation by a superseded operation", do: with(func(b *bench, f activities.Fence, id string) error {
			next := b.drain()
			if err := b.Created(b.t.Context(), f, id, "m-1"); err != nil {
				return err
			}
			return open(b, next, 1)
		})},
		{name: "creation by another operation", kind: schema.KindFenced, do: with(func(b *bench, _ activities.Fence, id string) error {
			return b.Created(b.t.Context(), b.drain(), id, "m-1")
		})},
		{name: "plan of an ended operation", kind: schema.KindFenced, reason: over,
			do: func(b *bench) error { _, err := b.plan(b.ended()); return err }},
		{name: "release by an ended operation", kind: schema.KindFenced, reason: over, do: with(func(b *bench, f activities.Fence, id string) error {
			if err := b.end(f, lifecycle.OperationCompleted); err != nil {
				return err
			}
			return b.Released(b.t.Context(), f, id)
		})},
		{name: "ledger of an ended operation", kind: schema.KindFenced, reason: over, do: func(b *bench) error { return open(b, b.ended(), 0) }},
		{name: "ledger of a superseded operation", kind: schema.KindFenced, do: func(b *bench) error { return open(b, b.superseded(), 0) }},
		{name: "release by a superseded operation", kind: schema.KindFenced, do: with(func(b *bench, f activities.Fence, id string) error {
			b.drain()
			return b.Released(b.t.Context(), f, id)
		})},
		{name: "release by the next operation", do: with(func(b *bench, _ activities.Fence, id string) error {
			next := b.drain()
			if err := b.Released(b.t.Context(), next, id); err != nil {
				return err
			}
			return open(b, next, 0)
		})},
		{name: "creation that ends after the release", do: with(func(b *bench, f activities.Fence, id string) error {
			if err := b.Released(b.t.Context(), f, id); err != nil {
				return err
			}
			if err := b.Created(b.t.Context(), f, id, "m-1"); err != nil {
				return err
			}
			return open(b, f, 1)
		})},
		{name: "release of an unknown entry", kind: schema.KindNotFound,
			do: func(b *bench) error { return b.Released(b.t.Context(), b.drain(), schema.NewID()) }},
	}
}
