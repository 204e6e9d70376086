package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxMachineLine bounds what a park quotes of a machine and its console, in bytes.
const maxMachineLine = 400

// awaitMachine waits until the provider reports that the machine is running.
func awaitMachine(ctx workflow.Context, op *operation) error {
	err := op.call(ctx, callProvider, "Wait until the machine is running", machine.AwaitMachine, machineOf(op))
	if err != nil && ctx.Err() == nil && failureOf(err).Reason == machines.ReasonFailed {
		describeMachine(ctx, op)
	}
	return err
}

// awaitBoot waits until the agent of a new machine polls.
func awaitBoot(ctx workflow.Context, op *operation) error {
	parked := op.parked()
	if !parked { // the machine of an earlier provisioning may have enrolled
		if err := op.readEnrollment(ctx); err != nil {
			return err
		}
	}
	err := awaitEnrollment(lifecycle.EventFirstPoll, func(e activities.Enrollment) bool { return e.Polled })(ctx, op)
	if err == nil || ctx.Err() != nil || failureOf(err).Reason != lifecycle.ReasonTimeout {
		return err
	}
	if !parked { // a retry in the background keeps the cause of the park
		describeMachine(ctx, op)
	}
	return schema.NewError(schema.KindAgentSilent, "the machine's agent sent no request within %s", lifecycle.Span(op.spec().Budget)).
		WithReason(lifecycle.ReasonMachineSilent)
}

// describeMachine reads the state of the operation's machine and the end of its console, which
// are untrusted, for the cause of a park. They are no part of the message, which the audit trail
// keeps: a console can show anything.
func describeMachine(ctx workflow.Context, op *operation) {
	o := callProvider
	o.RetryPolicy = once
	var line string
	ctx = remote(ctx, o, activities.ProviderTimeout, "Read the console of the machine")
	if err := workflow.ExecuteActivity(ctx, machine.DescribeMachine, machineOf(op)).Get(ctx, &line); err != nil {
		line = "the provider does not describe the machine"
	}
	op.machineSeen = text.Line(line, maxMachineLine)
}
