package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type opResolveOptions struct {
	reason string
	yes    bool
	wait   bool
	key    string
	operationArg
}

// decision is one of the op verbs that decide about an operation.
type decision struct {
	name    lifecycle.Decision
	short   string
	long    string
	example string
	// consequence completes the question a destructive decision asks; empty for
	// one that does not ask.
	consequence string
}

func newOpRetry(e *env) *cobra.Command {
	return newOpResolve(e, decision{name: lifecycle.DecisionRetry, short: "Run the parked phase again",
		long:    "Runs the phase that the operation is parked in again, with its whole budget.",
		example: "  gpuaas op retry gpu-17 --reason \"agent restarted\" --wait"})
}

func newOpSkip(e *env) *cobra.Command {
	return newOpResolve(e, decision{name: lifecycle.DecisionSkip, short: "Continue without the parked phase",
		long:        "Continues without the phase that the operation is parked in. The phase's work is not done.",
		example:     "  gpuaas op skip gpu-17 --reason \"probe is known broken, PROB-12\"",
		consequence: "the phase's work is not done"})
}

func newOpCancel(e *env) *cobra.Command {
	return newOpResolve(e, decision{name: lifecycle.DecisionCancel, short: "Undo the operation",
		long:    "Undoes what the operation did, restores the node's state at its start and ends it as cancelled.",
		example: "  gpuaas op cancel gpu-17 --reason \"wrong node\" --wait"})
}

func newOpForce(e *env) *cobra.Command {
	return newOpResolve(e, decision{name: lifecycle.DecisionForce, short: "Run the parked phase without its safety",
		long:        "Runs the phase that the operation is parked in without its safety: a drain then kills the work that blocks it.",
		example:     "  gpuaas op force gpu-17 --reason \"tenant agreed, TCK-99\"",
		consequence: "a forced drain kills the work that blocks it"})
}

func newOpExtend(e *env) *cobra.Command {
	return newOpResolve(e, decision{name: lifecycle.DecisionExtend, short: "Give the parked phase its time once more",
		long:    "Gives the phase that the operation is parked in its time once more.",
		example: "  gpuaas op extend gpu-17 --reason \"job ends at noon\""})
}

func newOpResolve(e *env, d decision) *cobra.Command {
	var o opResolveOptions
	c := &cobra.Command{
		Use: string(d.name) + " {NODE | OPERATION}", Short: d.short, Long: d.long, Example: d.example,
		Args: exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error { return runOpResolve(c.Context(), e, args[0], d, o) },
	}
	c.Flags().StringVar(&o.reason, "reason", "", "reason, kept in the audit trail (required)")
	c.Flags().BoolVar(&o.wait, "wait", false, "then follow the operation until it ends or parks again")
	addOperation(c, &o.operationArg)
	c.Flags().StringVar(&o.key, "idempotency-key", "", "repeat a request safely: the same key is the same decision")
	if d.consequence != "" {
		c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation; required without a terminal")
	}
	return c
}

func runOpResolve(ctx context.Context, e *env, arg string, d decision, o opResolveOptions) error {
	command := "gpuaas op " + string(d.name)
	if strings.TrimSpace(o.reason) == "" {
		return usagef(command, "missing --reason: it is kept in the audit trail")
	}
	if strings.TrimSpace(o.reason) == placeholder {
		return usagef(command, "--reason: %s is a placeholder, give the reason itself", placeholder)
	}
	if !plainText(o.reason, wire.MaxReason) {
		return usagef(command, "--reason: want one line of at most %d characters", wire.MaxReason)
	}
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	t, st, err := locate(ctx, ctl, arg, o.operationArg)
	if err != nil {
		return t.noOperation(ctx, ctl, string(d.name), err, o.reissue)
	}
	if d.consequence != "" {
		if err := e.ask(ctx, command, fmt.Sprintf("%s the %s of %s: %s", d.name, st.Operation.Action, t.name(), d.consequence), o.yes); err != nil {
			return err
		}
	}
	st, err = ctl.decide(ctx, st, d.name, o.reason, o.key)
	if err != nil {
		return t.inWords(err)
	}
	e.say("%s %s: decision accepted: %s", st.Operation.Action, t.name(), d.name)
	if o.wait {
		st, err = e.follow(ctx, followRequest{target: t, operation: st.Operation, control: ctl})
		err = e.finish(ctx, t, st, err)
		if d.name == lifecycle.DecisionCancel && st.Operation.Status == lifecycle.OperationCanceled {
			return nil // as decided
		}
		return err
	}
	return e.print(st, func(w io.Writer) { fmt.Fprintln(w, e.headline(t, st)) })
}
