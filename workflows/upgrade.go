package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/task"
)

// upgradeAgent sends the release to the agent. The task ends when the new agent has made its
// first poll, or the previous one runs again.
func upgradeAgent(ctx workflow.Context, op *operation) error {
	o := op.in.Options
	params := task.UpgradeParams{Release: o.Release, Downgrade: o.Downgrade}
	_, err := onNode[task.UpgradeResult](ctx, op, task.AgentUpgrade, params.Encode(), "Upgrade the agent to "+o.AgentVersion)
	return err
}
