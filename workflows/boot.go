package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxMachineLine bounds what a message quotes of a machine and its console, in bytes.
const maxMachineLine = 400

// awaitBoot waits until the agent of a new machine polls. When the time is up, the message has
// the state of the machine and the end of its console, if the provider returns them: both are
// untrusted.
func awaitBoot(ctx workflow.Context, op *operation) error {
	first := !op.parked()
	err := awaitEnrollment(lifecycle.EventFirstPoll, func(e activities.Enrollment) bool { return e.Polled })(ctx, op)
	if err == nil || !first || ctx.Err() != nil || failureOf(err).Reason != lifecycle.ReasonTimeout {
		return err
	}
	o := callProvider
	o.RetryPolicy = once
	var seen string
	ctx = remote(ctx, o, activities.ProviderTimeout, "Read the console of the machine")
	if failed := workflow.ExecuteActivity(ctx, machine.DescribeMachine, machineOf(op)).Get(ctx, &seen); failed != nil || seen == "" {
		seen = "the provider did not describe the machine"
	}
	return schema.NewError(schema.KindAgentSilent, "the machine's agent sent no request within %s; %s",
		lifecycle.Span(op.spec().Budget), text.Line(seen, maxMachineLine)).WithReason(lifecycle.ReasonMachineSilent)
}
