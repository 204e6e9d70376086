package workflows

import (
	"errors"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// A parked operation whose history or number of updates has grown continues as a new
// run of its workflow before the server's limits end it. Nothing is pending while an
// operation is parked.
const (
	maxEvents  = 2000 // the server suggests to continue at 4,096 and terminates at 51,200
	maxUpdates = 500  // the server rejects further updates after 2,000
)

// errRenew ends a run that continues as a new one.
var errRenew = errors.New("continue as a new run")

// Carried is what the run of a parked operation passes to the run that continues it.
type Carried struct {
	Claim       activities.Claim          `json:"claim"`
	Status      lifecycle.OperationStatus `json:"status"`
	Phase       int                       `json:"phase"`
	Undoing     bool                      `json:"undoing,omitempty"`
	LastStep    int64                     `json:"last_step"`
	Tries       int                       `json:"tries,omitempty"`
	UndoBegan   *time.Time                `json:"undo_began,omitempty"`
	Returns     int                       `json:"returns,omitempty"`
	Forced      bool                      `json:"forced,omitempty"`
	Adopted     bool                      `json:"adopted,omitempty"`
	CurrentStep string                    `json:"current_step,omitempty"`
	TaskUntil   time.Time                 `json:"task_until,omitzero"`
	Facts       inventory.Facts           `json:"facts"`
	Repair      repair                    `json:"repair,omitzero"`
	Unrecorded  activities.Advance        `json:"unrecorded"`
	Enrolled    activities.Enrollment     `json:"enrolled"`
	// Decided are the newest decisions that phases took.
	Decided []lifecycle.ResolveRequest `json:"decided,omitempty"`
	// AwaitsGoal reports whether the phase waits for events that end the park.
	AwaitsGoal bool `json:"awaits_goal,omitempty"`
	// Returned reports whether the lost task of CurrentStep returned.
	Returned bool `json:"returned,omitempty"`
}

// renewDue reports whether the parked operation must continue as a new run, and can: no
// decision is pending and all writes are stored.
func (op park) renewDue(ctx workflow.Context) bool {
	grown := workflow.GetInfo(ctx).GetCurrentHistoryLength() > maxEvents || op.updates > maxUpdates
	return grown && op.decision == nil && op.unwritten == 0 && workflow.AllHandlersFinished(ctx)
}

// continueAsNew ends the run and continues the operation as a new one. It first reads the
// signals that would be lost.
func continueAsNew(ctx workflow.Context, op *operation) error {
	op.receiveEvents(ctx)
	return workflow.NewContinueAsNewError(ctx, op.plan.Workflow, op.in, carry(op))
}

// carry returns what the run passes to the one that continues it.
func carry(op *operation) *Carried {
	return &Carried{
		Claim: op.claim, Status: clone(op.status), Phase: op.phase, Undoing: op.undoing, LastStep: op.lastStep,
		Tries: op.tries, UndoBegan: op.undoBegan, Returns: op.returns, Forced: op.forced, Adopted: op.adopted, Repair: op.repair,
		CurrentStep: op.currentStep, TaskUntil: op.taskUntil, Facts: op.facts, Unrecorded: op.unrecorded,
		Enrolled: op.enrolled, Returned: op.returned[op.currentStep], Decided: op.decided,
		AwaitsGoal: op.goalReached != nil,
	}
}

// restore restores the parked operation of the run before.
func (c Carried) restore(op *operation) {
	op.runBefore = c.Status.Operation.RunID
	c.Status.Operation.RunID = op.status.Operation.RunID
	op.claim, op.plan, op.status, op.answered = c.Claim, c.Claim.Plan, c.Status, true
	op.phase, op.undoing, op.lastStep, op.resumed = c.Phase, c.Undoing, c.LastStep, true
	op.tries, op.undoBegan, op.returns, op.forced, op.adopted = c.Tries, c.UndoBegan, c.Returns, c.Forced, c.Adopted
	op.currentStep, op.taskUntil, op.facts, op.unrecorded, op.enrolled = c.CurrentStep, c.TaskUntil, c.Facts, c.Unrecorded, c.Enrolled
	op.published, op.decided, op.repair = true, c.Decided, c.Repair
	if c.AwaitsGoal {
		op.goalReached = func(workflow.Context) bool { return false } // until resume enters the phase again
	}
	if c.Returned {
		op.returned[c.CurrentStep] = true
	}
}

// resume shows and records that this run continues the parked operation. A phase that
// waits for events is entered again at once, so that its events are followed. ended and again are
// those of retry.
func (op park) resume(ctx workflow.Context) (ended, again bool, err error) {
	stuck := *op.status.Operation.Stuck
	op.show(ctx)
	_, err = recordLater(ctx, op.operation, "Record the run that continues the operation",
		op.progress(ctx, activities.Advance{Phase: stuck.Phase, Stuck: &stuck, Continued: true}))
	noteRejected(ctx, op.state, err)
	if op.goalReached == nil {
		return false, false, nil
	}
	return op.retry(ctx)
}
