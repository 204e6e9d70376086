package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// newIdentity makes the agent enroll again with new keys, and waits for its first poll with the
// new identity. The claim of the token begins an incarnation, so the previous identity and each
// copy of it are void. A repeated phase sends no second task once the token is claimed.
func newIdentity(ctx workflow.Context, op *operation) error {
	before := op.claim.Incarnation
	if err := op.readEnrollment(ctx); err != nil {
		return err
	}
	if op.enrolled.Incarnation <= before {
		_, err := onNode[struct{}](ctx, op, task.NewIdentity, nil, "Have the agent enroll with a new identity")
		if err != nil {
			return err
		}
	}
	polled := func(e activities.Enrollment) bool { return e.Incarnation > before && e.Polled }
	return awaitEnrollment(lifecycle.EventFirstPoll, polled)(ctx, op)
}
