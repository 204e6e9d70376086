package agent

import (
	"context"
	"log/slog"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// newIdentity runs agent.new_identity.
type newIdentity struct {
	api      func() *nodeapi.Client
	identity *identity.Manager
	log      *slog.Logger
}

// run stores the token for the next identity. The node enrolls with it once the server has the
// task's result, which only the current identity can report.
func (n newIdentity) run(ctx context.Context, t runner.Task) (any, error) {
	issued, err := n.api().IdentityToken(ctx, t.TaskID, t.CorrelationID)
	if err != nil {
		return nil, err
	}
	return struct{}{}, n.identity.StoreToken(t.TaskID, schema.NewSecret(issued.Token))
}

// reported makes the next pass of the identity manager enroll.
func (n newIdentity) reported(p task.Payload) bool {
	if err := n.identity.UseToken(p.TaskID); err != nil {
		n.log.Error("cannot use the token for a new identity", "task_id", p.TaskID, "err", err.Error())
	}
	return false
}
