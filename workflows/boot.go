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
// the state of the machine and the end of its console: both are untrusted. A retry in the
// background does not read them again.
func awaitBoot(ctx workflow.Context, op *operation) error {
	seen := describeMachine
	if op.parked() {
		seen = func(workflow.Context, *operation) string { return "" }
	}
	err := awaitEnrollment(lifecycle.EventFirstPoll, func(e activities.Enrollment) bool { return e.Polled })(ctx, op)
	if err == nil || ctx.Err() != nil || failureOf(err).Reason != lifecycle.ReasonTimeout {
		return err
	}
	return schema.NewError(schema.KindAgentSilent, "the machine's agent sent no request within %s%s", lifecycle.Span(op.spec().Budget), seen(ctx, op)).
		WithReason(lifecycle.ReasonMachineSilent)
}

// describeMachine describes the operation's machine for a message.
func describeMachine(ctx workflow.Context, op *operation) string {
	o := callProvider
	o.RetryPolicy = once
	var line string
	ctx = remote(ctx, o, activities.ProviderTimeout, "Read the console of the machine")
	if err := workflow.ExecuteActivity(ctx, machine.DescribeMachine, machineOf(op)).Get(ctx, &line); err != nil {
		line = "the provider does not describe the machine"
	}
	return "; " + text.Line(line, maxMachineLine)
}
