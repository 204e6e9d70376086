package agent

import (
	"context"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// newIdentity runs agent.new_identity: it stores the token for the next identity. The node
// enrolls with it once the server has the task's result, which only the current identity can
// report.
func (a *Agent) newIdentity(ctx context.Context, t runner.Task) (any, error) {
	issued, err := a.api().IdentityToken(ctx, t.TaskID, t.CorrelationID)
	if err != nil {
		return nil, err
	}
	return struct{}{}, a.identity.StoreToken(t.TaskID, schema.NewSecret(issued.Token))
}

// useToken ends agent.new_identity. The next pass of the identity manager enrolls.
func (a *Agent) useToken(p task.Payload) bool {
	if err := a.identity.UseToken(p.TaskID); err != nil {
		a.log.Error("cannot use the token for a new identity", "task_id", p.TaskID, "err", err.Error())
	}
	return false
}
