package activities

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// Records is what Postgres holds true about nodes and operations. Errors are
// *schema.Error: KindServiceUnavailable when the database cannot be reached
// (the caller retries), KindNotFound, KindFenced and the refusals of Claim.
type Records interface {
	// Claim takes the node for an operation: it checks the state the action
	// may come from, allocates the next op_seq, stores the operation, enters the
	// move's Claim state and writes the audit row, in one transaction. A second
	// call with the same operation and run answers the same claim. Refusals
	// (KindNotFound, KindInvalidRequest, KindNodeInUse) leave an audit row with
	// result refused and change nothing else. A retire without drain is refused
	// KindNodeInUse while the node reports workloads. An operation id that
	// another run already used is KindInvalidRequest, reason duplicate_operation.
	//
	// A reissue does not hold its node: it gets op_seq 0, runs beside whatever
	// operation does, and is refused while that one drains or removes.
	Claim(ctx context.Context, r ClaimRequest) (Claim, error)
	// Advance records progress under the fence; the same call twice changes
	// nothing the second time. A change of state, a park and a decision each
	// write one audit row. With op_seq 0 the fence covers the operation's own row
	// and nothing of the node, here and at its Finish.
	Advance(ctx context.Context, f Fence, a Advance) error
	// Finish ends the operation under the fence: node state, operation row,
	// void of the operation's unfinished tasks, audit row. Twice is once.
	Finish(ctx context.Context, f Fence, e Finish) error
	// Enrollment says how far the node's enrolment has come, for the current
	// incarnation. A claimed token stays claimed beyond its own end: the claiming
	// key may still ask for its certificate, so a claim is never waited for twice.
	Enrollment(ctx context.Context, nodeID string) (Enrollment, error)
	// LastHeartbeat returns when the node's agent was last heard, zero when
	// never.
	LastHeartbeat(ctx context.Context, nodeID string) (time.Time, error)
}

// Tasks is the queue of node tasks.
type Tasks interface {
	// Prepare finds the task of the spec's operation and step (id
	// lifecycle.TaskID) and sets its owner: the activity its result completes. For
	// a step without one it answers the row that Enqueue would store, with the
	// seq it may have, and stores nothing.
	Prepare(ctx context.Context, s TaskSpec, o task.Owner) (TaskRow, error)
	// Enqueue stores the prepared row with its signed envelope and wakes the
	// node's poll, in one transaction. Twice is once: the first envelope stays.
	// KindServiceUnavailable, reason seq_taken, when another task took the row's
	// seq since: prepare again.
	Enqueue(ctx context.Context, s TaskSpec, o task.Owner, row TaskRow, envelope []byte) error
	// Void ends the operation's unfinished tasks as cancelled. The agent is told
	// of it; a late result is recorded, not applied.
	Void(ctx context.Context, f Fence) error
}

// Reclaimer reconciles tasks that nobody holds any more.
type Reclaimer interface {
	// Reclaim looks at one batch of tasks whose lease ended more than
	// task.StaleGrace ago, whose operation is over, or whose stored result is
	// not delivered, and decides each in a transaction of its own, with an audit
	// row: read and idempotent ones are requeued and the node is woken;
	// destructive ones become lost and their activity is completed as failed
	// with reason task.ReasonLost. It only reconciles: run twice, at once
	// by two workers, or late, it decides nothing that is not so. A task that
	// cannot be decided keeps none of the others from it: its error comes with the
	// whole report. KindServiceUnavailable ends the batch.
	Reclaim(ctx context.Context, r ReclaimRequest) (ReclaimReport, error)
}

// Signer signs task payloads. It never sees a key: Vault holds it.
type Signer interface {
	// Sign returns a DSSE envelope of the payload bytes with payload type
	// task.PayloadType. KindServiceUnavailable when Vault is sealed or
	// cannot be reached.
	Sign(ctx context.Context, payload []byte) (envelope []byte, err error)
}

// Sets knows the verifier sets.
type Sets interface {
	// MinVerifierSet returns the version of the verifier set in which the key that
	// Signer uses became the active one, 0 for the first set. A node with an older
	// set does not know the key.
	MinVerifierSet(ctx context.Context) (int64, error)
}

// Ledger lists what of a node exists outside, so that nothing leaks.
type Ledger interface {
	// Plan records the intent to create, before the outside call. Twice is
	// once; it returns what stands.
	Plan(ctx context.Context, f Fence, r Resource) (Resource, error)
	// Created records that the resource exists.
	Created(ctx context.Context, f Fence, resourceID, externalID string) error
	// Released records that the resource is gone.
	Released(ctx context.Context, f Fence, resourceID string) error
	// Open returns the node's entries that are not released, oldest first.
	Open(ctx context.Context, nodeID string) ([]Resource, error)
}

// Provider makes and takes away the machine behind a node. The resource's id is
// the idempotency key.
type Provider interface {
	// Name is the provider's name in the inventory, for example manual.
	Name() string
	// Creates reports whether the provider makes machines, so that a node may
	// be provisioned before it is enrolled.
	Creates() bool
	// Ensure creates or finds the machine and returns its id there. Calling it
	// again with the same resource finds the same machine.
	Ensure(ctx context.Context, r Resource, host string) (externalID string, err error)
	// Release gives the machine back. Releasing what is gone succeeds.
	Release(ctx context.Context, r Resource) error
}
