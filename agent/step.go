package agent

import (
	"context"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// Action is what a pass of the identity keeper did.
type Action string

// The actions.
const (
	// ActNothing: the identity in use is good, or there is a reason to wait.
	ActNothing Action = "nothing"
	ActEnroll  Action = "enroll"
	ActRenew   Action = "renew"
	ActRecover Action = "recover"
	// ActPromote: a stored identity was used for the first time.
	ActPromote Action = "promote"
	// ActFallBack: another stored identity took the place of a refused one.
	ActFallBack Action = "fall_back"
	// ActWipe: the node is removed; its keys and tokens are gone.
	ActWipe Action = "wipe"
)

// Outcome is the result of one pass of the identity keeper.
type Outcome struct {
	Action Action
	// Err is why the action failed; nil when it succeeded.
	Err error
	// Ready is true when there is an identity to poll with.
	Ready bool
	// Wait is how long nothing is to be done about the identity. A pass before
	// that does nothing and says what is left.
	Wait time.Duration
	// Removed is true when the node is removed: the agent is to stop.
	Removed bool
}

// Step makes one pass of the identity keeper and, with an identity to do it
// with, one poll. It is Run's loop cut into pieces for a caller who decides
// when: no goroutine outlives it but those of tasks, which end with ctx; Settle
// waits for them. The first one with an identity goes on with the tasks that a
// former process left. It must not run beside Run or itself. The poll's error is
// the second value.
func (a *Agent) Step(ctx context.Context) (Outcome, error) {
	if a.leaving.Load() {
		return a.keeper.wipe(), nil
	}
	out := a.Keep(ctx)
	if !out.Ready {
		return out, nil
	}
	a.resume(ctx)
	err := a.Poll(ctx)
	out.Removed = a.keeper.gone
	if left := a.keeper.hold.left(a.now()); left > 0 {
		out.Wait = left
	}
	return out, err
}

// Settle returns when every task that the agent took has ended and its result
// was taken, or when the context they were taken with ended.
func (a *Agent) Settle() { a.tasks.wait() }

// Certificate returns the facts of the identity in use and its sequence; ok is
// false when there is none.
func (a *Agent) Certificate() (facts trust.CertFacts, sequence int64, ok bool) {
	v := a.keeper.inUse.Load()
	if v == nil {
		return trust.CertFacts{}, 0, false
	}
	return v.facts, v.meta.Sequence, true
}

// NoWorkloads is the driver of a node without workloads.
func NoWorkloads() Workloads { return noWorkloads{} }
