package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Task holds the activities that give work to a node.
type Task struct {
	Tasks  Tasks
	Signer Signer
	// Sets says the oldest verifier set that may judge a task; nil for any.
	Sets Sets
	// Env is the environment's name, part of every identity and envelope.
	Env string
	// Now is the clock of issue times. Defaults to time.Now.
	Now func() time.Time
}

// RunNodeTask gives a task to the node and leaves the activity open: the node API
// completes it by id when the result is stored (task.Result), so no
// worker slot is held meanwhile. A second run, as after a heartbeat timeout, finds
// its own row: it signs what is unsigned, answers a stored result at once, fails
// with task.ReasonLost for a task that was given up, and otherwise goes on
// waiting.
//
// ActivityID must be the spec's Step, which the stored owner repeats.
func (t *Task) RunNodeTask(ctx context.Context, spec TaskSpec) (task.Result, error) {
	info := activity.GetInfo(ctx)
	owner := task.Owner{
		WorkflowID: info.WorkflowExecution.ID, RunID: info.WorkflowExecution.RunID, ActivityID: info.ActivityID,
	}
	row, err := t.Tasks.Prepare(ctx, spec, owner)
	if err != nil {
		return task.Result{}, fail(err)
	}
	if row.Result != nil {
		return stored(*row.Result)
	}
	if !row.Signed {
		if err := t.enqueue(ctx, spec, owner, row); err != nil {
			return task.Result{}, fail(err)
		}
	}
	return task.Result{}, activity.ErrResultPending
}

// stored answers for a task that is over, as its completion would have: a
// failure is final whatever its kind, since the row stays as it is.
func stored(r task.Result) (task.Result, error) {
	if e := r.Failure(); e != nil {
		return task.Result{}, final(e)
	}
	return r, nil
}

// enqueue signs the task and stores it with its envelope. Signed first, so that
// the row is offered from the moment it stands.
func (t *Task) enqueue(ctx context.Context, spec TaskSpec, o task.Owner, row TaskRow) error {
	p := t.payload(ctx, spec, row)
	if t.Sets != nil {
		// Asked before the signing: should the key change in between, the version
		// is one that the new key's nodes are past.
		least, err := t.Sets.MinVerifierSet(ctx)
		if err != nil {
			return err
		}
		p.MinSetVersion = least
	}
	payload, err := json.Marshal(p)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding task %s", row.TaskID)
	}
	envelope, err := t.Signer.Sign(ctx, payload)
	if err != nil {
		return err
	}
	return t.Tasks.Enqueue(ctx, spec, o, row, envelope)
}

func (t *Task) payload(ctx context.Context, spec TaskSpec, row TaskRow) task.Payload {
	now := time.Now
	if t.Now != nil {
		now = t.Now
	}
	issued := now().UTC().Truncate(time.Second)
	params := row.Params
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	runtime := time.Duration(0)
	if r, ok := row.Type.Info(); ok {
		runtime = r.MaxRuntime
	}
	// A node hashes the params as they stand in the signed body, which has no
	// spaces; those of a stored row do.
	if compact, err := json.Marshal(params); err == nil {
		params = compact
	}
	digest := sha256.Sum256(params)
	expect := spec.Expect
	expect.OpSeq = spec.OpSeq
	return task.Payload{
		V: 1, Env: t.Env, TaskID: row.TaskID, NodeID: row.NodeID, Incarnation: row.Incarnation,
		Type: row.Type, TypeVersion: 1, Effect: row.Effect, Params: params, ParamsSHA256: hex.EncodeToString(digest[:]),
		Seq: row.Seq, Attempt: max(spec.Attempt, 1), Expect: expect,
		IssuedAt: issued, NotBefore: issued, ExpiresAt: spec.Deadline.UTC(), MaxRuntime: int64(runtime / time.Second),
		OperationID: spec.OperationID, WorkflowID: activity.GetInfo(ctx).WorkflowExecution.ID,
		CorrelationID: spec.CorrelationID,
	}
}

// VoidTasks ends the operation's unfinished tasks; see Tasks.Void. A second run
// changes nothing.
func (t *Task) VoidTasks(ctx context.Context, f Fence) error {
	return fail(t.Tasks.Void(ctx, f))
}
