package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/insight"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/preview"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// lookupLimit bounds the read of the node after an operation.
const lookupLimit = 3 * time.Second

// lifecycleOptions are the flags of the commands that start operations.
type lifecycleOptions struct {
	wait   bool
	noWait bool
	// timeout bounds the wait. Defaults to the limits of the phases; see followed.renew.
	timeout time.Duration
	dryRun  bool
	reason  string
	yes     bool
	key     string
	// startWithin is how long the operation may take to claim its node.
	startWithin time.Duration
	// deadline becomes options.DrainTimeoutSeconds of an action that drains.
	deadline time.Duration
	// rebootWait becomes options.Recovery.RebootWaitSeconds.
	rebootWait time.Duration
	options    lifecycle.Options
	// sshKeys are files, whose content becomes options.Machine.SSHKeys.
	sshKeys []string
	// confirm is verb.confirm.
	confirm func(lifecycle.Options) string
}

func (o *lifecycleOptions) waits() bool { return o.wait && !o.noWait }

// check rejects invalid flags and completes options.
func (o *lifecycleOptions) check(c *cobra.Command) (err error) {
	if c.Flags().Changed("wait") && o.wait && o.noWait {
		return usagef(c.CommandPath(), "--wait and --no-wait exclude each other")
	}
	if c.Flags().Changed("deadline") && c.Flags().Lookup("drain") != nil && !o.options.Drain {
		return usagef(c.CommandPath(), "--deadline requires --drain")
	}
	if c.Flags().Lookup("deadline") != nil && (o.options.Drain || c.Flags().Lookup("drain") == nil) {
		if o.deadline < time.Second || o.deadline > wire.MaxDrainDeadline { // 0 seconds would be the default
			return usagef(c.CommandPath(), "--deadline %s: must be 1s to %s", o.deadline, lifecycle.Span(wire.MaxDrainDeadline))
		}
		o.options.DrainTimeoutSeconds = int64(o.deadline / time.Second)
	}
	if c.Flags().Lookup("downgrade") != nil && !trust.ValidVersion(o.options.AgentVersion) {
		return usagef(c.CommandPath(), "--version is required: the version of a release")
	}
	if c.Flags().Changed("start-within") && (o.startWithin < time.Second || o.startWithin > wire.MaxStartWithin) {
		return usagef(c.CommandPath(), "--start-within %s: must be 1s to %s", o.startWithin, lifecycle.Span(wire.MaxStartWithin))
	}
	if o.rebootWait != 0 && (o.rebootWait < time.Second || o.rebootWait > lifecycle.MaxRebootWait) {
		return usagef(c.CommandPath(), "--reboot-wait %s: must be 1s to %s", o.rebootWait, lifecycle.Span(lifecycle.MaxRebootWait))
	}
	o.options.Recovery.RebootWaitSeconds = int64(o.rebootWait / time.Second)
	if err := lifecycle.CheckRecovery(o.options.Recovery); err != nil {
		return usagef(c.CommandPath(), "%s", schema.AsError(err).Message)
	}
	if r := o.options.Recovery; len(r.GPUs) > 0 && !slices.Contains(r.Rungs, recovery.RungResetGPU) {
		return usagef(c.CommandPath(), "--gpu needs the rung reset_gpu, for example --rung reset_gpu,quarantine")
	}
	if o.options.Machine.SSHKeys, err = readPublicKeys(c.CommandPath(), o.sshKeys); err != nil {
		return err
	}
	if o.options.Force && o.options.Drain {
		return usagef(c.CommandPath(), "--force and --drain exclude each other")
	}
	return checkReason(c.CommandPath(), o.reason, o.options.Force)
}

// checkReason rejects a missing --reason before a confirmation is asked for.
func checkReason(command, reason string, required bool) error {
	switch trimmed := strings.TrimSpace(reason); {
	case required && trimmed == "":
		return usagef(command, "missing --reason: it is kept in the audit trail")
	case trimmed == lifecycle.ReasonPlaceholder:
		return usagef(command, "--reason: replace the word %s by the reason", lifecycle.ReasonPlaceholder)
	}
	return nil
}

// prepare finds the node of an action. With --dry-run it prints the plan instead and
// reports that the command is done.
func (e *env) prepare(ctx context.Context, ctl control, arg string, a lifecycle.Action, o lifecycleOptions) (t target, done bool, err error) {
	if o.dryRun && e.flags.direct {
		return t, true, usagef("gpuaas node "+string(a), "--dry-run needs the admin API and does not work with --direct")
	}
	if t, err = ctl.find(ctx, arg); err != nil || !o.dryRun {
		return t, err != nil, suggestRepeat(err, e.flags.direct || o.dryRun)
	}
	provider, err := providerOf(ctx, e.api(), *t.view)
	if err != nil {
		return t, true, err
	}
	took, err := decode[insight.DurationList](e.api().ListDurations(ctx, &adminclient.ListDurationsParams{Action: string(a), Provider: &t.view.OnboardingMode}))
	if schema.KindOf(err) == schema.KindNotFound { // the API is older than this command
		err = nil
	}
	if err != nil {
		return t, true, err
	}
	return t, true, e.printPlan(*t.view, provider, a, o.options, took)
}

// runLifecycle starts the operation and, if requested, waits for its end.
func runLifecycle(ctx context.Context, e *env, arg string, a lifecycle.Action, o lifecycleOptions) error {
	ctl, err := e.control()
	if err != nil {
		return err
	}
	t, done, err := e.prepare(ctx, ctl, arg, a, o)
	if done {
		return err
	}
	if t.view != nil {
		if warning := preview.ReleaseWarning(*t.view, a); warning != "" {
			e.message("warning: %s", warning)
		}
	}
	if o.confirm != nil {
		what := string(a) + " " + t.name() + ": " + o.confirm(o.options)
		if err := e.confirm(ctx, "gpuaas node "+string(a), what, o.yes); err != nil {
			return err
		}
	}
	op, err := ctl.start(ctx, t, a, o)
	if err != nil {
		return e.startError(ctx, t, err)
	}
	if !o.waits() {
		return e.finish(ctx, t, lifecycle.OperationStatus{Operation: op, Node: t.ref()}, nil)
	}
	e.message("%s %s: %s as operation %s", a, t.name(), op.Status, op.OperationID)
	st, err := e.follow(ctx, followRequest{target: t, operation: op, options: o.options, control: ctl, limit: o.timeout})
	return e.finish(ctx, t, st, err)
}

// startError is the error of a start. If no response arrived, the operation is not known to
// have started, and the node's newest one may be another.
func (e *env) startError(ctx context.Context, t target, err error) error {
	if !e.flags.direct && startUnknown(ctx, err) {
		e.message("the operation is not known to have started; see: gpuaas op list --node %s", t.name())
	}
	return t.inError(err)
}

// startUnknown reports whether a start failed without a response of the admin API, which may have
// started the operation.
func startUnknown(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || schema.AsError(err).Reason == "api_unreachable")
}

// inError replaces NODE and the node's id by the node's name in a refusal, so that
// the command in it can be pasted.
func (t target) inError(err error) error {
	refusal, ok := errors.AsType[*schema.Error](err)
	if !ok {
		return err
	}
	filled := *refusal
	filled.Message = preview.Fill(filled.Message, t.name())
	filled.Next = preview.Fill(filled.Next, t.name())
	if t.id != "" {
		filled.Next = strings.ReplaceAll(filled.Next, t.id, t.name())
	}
	return &filled
}

// lifecycleResult is the output of a command that started an operation: the node as
// the admin API returned it, or the operation's part of it when the API does not
// respond.
type lifecycleResult struct {
	Operation lifecycle.Operation `json:"operation"`
	Node      any                 `json:"node"`
}

// finish prints the operation's object once and turns its status, and the end of
// the wait, into the exit code.
func (e *env) finish(ctx context.Context, t target, st lifecycle.OperationStatus, waitErr error) error {
	result := lifecycleResult{Operation: st.Operation, Node: st.Node}
	if !e.flags.direct {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupLimit)
		defer cancel()
		if now, err := e.apiControl().find(ctx, t.id); err == nil {
			result.Node, st.Node.State = now.view, now.view.State
		}
	}
	if err := e.print(result, func(w io.Writer) { fmt.Fprintln(w, headline(t, st)) }, st.Operation.OperationID); err != nil {
		return err
	}
	if waitErr != nil {
		return waitErr
	}
	return outcome(t, st.Operation, e.clock.now())
}

// headline is an operation in one line.
func headline(t target, st lifecycle.OperationStatus) string {
	op := st.Operation
	line := fmt.Sprintf("%s %s: %s", op.Action, t.name(), op.Status)
	switch {
	case !op.Status.Ended():
		line += fmt.Sprintf(" (operation %s)", op.OperationID)
	case op.StartedAt != nil && op.EndedAt != nil:
		line += " after " + took(op.EndedAt.Sub(*op.StartedAt))
	}
	if op.Outcome != "" {
		line += ": " + op.Outcome
	}
	if op.Status.Ended() && st.Node.State != "" {
		line += fmt.Sprintf("; the node is %s", st.Node.State)
	}
	return clean(line)
}

// outcome is the error of an operation that did not complete, whose headline is
// already printed, that parked, or that was abandoned.
func outcome(t target, op lifecycle.Operation, now time.Time) error {
	switch op.Status {
	case lifecycle.OperationFailed, lifecycle.OperationCanceled:
		return &exitError{schema.ExitFailed, nil}
	case lifecycle.OperationRejected:
		return &exitError{schema.ExitRefused, nil}
	case lifecycle.OperationParked:
		return &exitError{schema.ExitPending, parkLines(t, op, now)}
	case lifecycle.OperationAbandoned:
		return &exitError{schema.ExitFailed, parkLines(t, op, now)}
	}
	return nil
}

// parkLines describe a parked or abandoned operation and the options that resolve it, the
// least harmful first. Each command is a line of its own, so that it can be pasted.
func parkLines(t target, op lifecycle.Operation, now time.Time) []string {
	s := op.Stuck
	if s == nil {
		return []string{fmt.Sprintf("%s %s is %s: it waits for a decision", op.Action, t.name(), op.Status), "next:  " + t.op("show", op.Action)}
	}
	phase := ""
	if s.Phase != "" {
		phase = " in phase " + s.Phase
	}
	lines := []string{fmt.Sprintf("%s %s has been %s%s for %s: %s (%s)", op.Action, t.name(), op.Status, phase, lifecycle.Span(now.Sub(s.Since)), s.Message, s.Reason)}
	if s.Cause != "" {
		lines = append(lines, "likely cause: "+s.Cause)
	}
	if len(s.Options) == 0 {
		return append(lines, "next:  "+nextCommand(t, op.Action, s))
	}
	lines = append(lines, "options, the least harmful first:")
	for _, o := range s.Options {
		lines = append(lines, "  "+o.Does, "    "+preview.Fill(o.Command, t.name()))
	}
	return lines
}

// nextCommand is the command that resolves a stuck operation, with the node's name
// in it so that it can be pasted.
func nextCommand(t target, a lifecycle.Action, s *lifecycle.Stuck) string {
	if s == nil || s.Next == "" {
		return t.op("show", a)
	}
	return preview.Fill(s.Next, t.name())
}

// hint is the action that an operator must take for the running phase to end; empty
// when none is needed.
func hint(t target, op lifecycle.Operation) string {
	for i, spec := range lifecycle.PhasesOf(op.Action, lifecycle.Options{}) {
		if spec.Hint != "" && i < len(op.Phases) && op.Phases[i].Name == spec.Name && op.Phases[i].State == lifecycle.PhaseRunning {
			return strings.ReplaceAll(spec.Hint, "NODE", t.name())
		}
	}
	return ""
}
