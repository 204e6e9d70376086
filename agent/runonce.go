package agent

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// RunOnce makes one pass of the identity manager and, with an identity in use, one
// poll. It is one iteration of Run's loop, for a caller that controls time. The only
// goroutines that outlive it are those of tasks, which end with ctx and which Wait waits
// for, and the listing of a workload driver that does not answer. The first call with an
// identity resumes the tasks of a previous process. It must not run concurrently with
// Run or itself. The second value is the poll's error.
func (a *Agent) RunOnce(ctx context.Context) (identity.Outcome, error) {
	if a.leaving.Load() {
		return a.identity.Wipe(), nil
	}
	out := a.ReconcileIdentity(ctx)
	if !out.Ready {
		return out, nil
	}
	a.resume(ctx)
	_, err := a.poll(ctx)
	out.Removed = a.identity.Removed()
	if left := a.identity.RetryIn(); left > 0 {
		out.Wait = left
	}
	return out, err
}

// ReconcileIdentity makes one pass of the identity manager: it decides what the
// identity needs and does it, once. It must not run concurrently with Run, RunOnce or
// itself.
func (a *Agent) ReconcileIdentity(ctx context.Context) identity.Outcome {
	out := a.identity.Reconcile(ctx)
	if out.Err != nil && out.Wait > 0 && ctx.Err() == nil {
		a.reloadConfig()
	}
	return out
}

// Wait returns when every accepted task has ended and the server has its result,
// or when the context they were accepted with ended.
func (a *Agent) Wait() { a.tasks.Wait() }

// Certificate returns the facts of the identity in use and its sequence; ok is
// false when there is none.
func (a *Agent) Certificate() (facts trust.CertFacts, sequence int64, ok bool) {
	v := a.identity.Current()
	if v == nil {
		return trust.CertFacts{}, 0, false
	}
	return v.Facts, v.Meta.Sequence, true
}
