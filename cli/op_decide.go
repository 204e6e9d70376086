package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// decision is a command that resolves a parked operation, or a task.
type decision struct {
	name                 lifecycle.Decision
	short, long, example string
	// consequence is shown in the confirmation prompt. Empty for a decision that
	// needs no confirmation.
	consequence string
	// bulk allows the decision about many operations at once.
	bulk bool
}

func decisions() []decision {
	return []decision{
		{name: lifecycle.DecisionRetry, short: "Run the parked phase again",
			long: "Runs the phase in which the operation is parked again, with its full time limit.",
			example: "  gpuaas op retry gpu-17 --reason \"agent restarted\" --wait\n" +
				"  gpuaas op retry --stuck-reason service_unavailable --reason \"Vault is unsealed\"", bulk: true},
		{name: lifecycle.DecisionSkip, short: "Continue without the parked phase",
			long:        "Continues with the next phase. The work of the phase in which the operation is parked\nis not done on the node.",
			example:     "  gpuaas op skip gpu-17 --reason \"probe is known to be broken, PROB-12\"",
			consequence: "the phase's work is not done"},
		{name: lifecycle.DecisionCancel, short: "Undo the operation",
			long: "Cancels the operation and restores the state that the node had before it.",
			example: "  gpuaas op cancel gpu-17 --reason \"wrong node\" --wait\n" +
				"  gpuaas op cancel -l rack=r7 --action drain --reason \"maintenance is called off\"", bulk: true},
		{name: lifecycle.DecisionForce, short: "Run the parked phase without its safety check",
			long:        "Runs the phase in which the operation is parked without its safety check. For example, a\nforced drain kills the workloads that block it.",
			example:     "  gpuaas op force gpu-17 --reason \"tenant agreed, TCK-99\"",
			consequence: "a forced drain kills the workloads that block it"},
		{name: lifecycle.DecisionExtend, short: "Give the workloads that block a drain more time",
			long: "Gives the workloads that block a drain its whole time limit again. Possible only when\nthe operation is parked with the reason drain_blocked; else use gpuaas op retry.",
			example: "  gpuaas op extend gpu-17 --reason \"job ends at noon\"\n" +
				"  gpuaas op extend --stuck-reason drain_blocked -l tenant=acme --reason TCK-99", bulk: true},
	}
}

type opDecideOptions struct {
	manyOptions
	reason, key string
	yes, wait   bool
}

func newOpDecide(e *env, d decision) *cobra.Command {
	var o opDecideOptions
	var c *cobra.Command
	c = e.opCommand(string(d.name), d.short, d.long, d.example,
		func() error { return checkReason(c.CommandPath(), o.reason, true) },
		func(ctx context.Context, found located) error { return runOpDecide(ctx, e, d, found, o) })
	addReason(c, &o.reason)
	c.Flags().BoolVar(&o.wait, "wait", false, "then follow the operation until it ends or parks again")
	c.Flags().StringVar(&o.key, "idempotency-key", "", "repeat a request safely: the same key is the same decision")
	if d.consequence != "" || d.bulk {
		addYes(c, &o.yes)
	}
	if d.bulk {
		makeBulk(e, c, d, &o)
	}
	return c
}

// makeBulk lets the command decide about many operations.
func makeBulk(e *env, c *cobra.Command, d decision, o *opDecideOptions) {
	c.Use = string(d.name) + " {NODE | OPERATION | --selector SELECTOR}"
	c.Long += bulkHelp
	o.add(c)
	one := c.RunE
	c.Args = func(c *cobra.Command, args []string) error {
		switch {
		case !o.many():
			return exactArgs("NODE")(c, args)
		case len(args) > 0:
			return usagef(c.CommandPath(), "specify NODE, or --selector, --stuck-reason or --action, not both")
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := o.checkBulk(c, e.flags.direct); err != nil {
			return err
		}
		if !o.many() {
			return one(c, args)
		}
		return runOpDecideMany(c.Context(), e, d, *o)
	}
}

// checkBulk rejects flags that exclude each other.
func (o *opDecideOptions) checkBulk(c *cobra.Command, direct bool) error {
	others, of := []string{"operation", "reissue", "wait", "idempotency-key"}, "is for one operation"
	if !o.many() {
		others, of = []string{"allow-harm", "dry-run", "max-parallel"}, "needs --selector, --stuck-reason or --action"
	}
	for _, name := range others {
		if c.Flags().Changed(name) {
			return usagef(c.CommandPath(), "--%s %s", name, of)
		}
	}
	switch {
	case !o.many():
		return nil
	case direct:
		return usagef(c.CommandPath(), "a decision about many operations needs the admin API and does not work with --direct")
	case o.parallel < 1:
		return usagef(c.CommandPath(), "--max-parallel %d: must be at least 1", o.parallel)
	}
	return checkReason(c.CommandPath(), o.reason, true)
}

func runOpDecide(ctx context.Context, e *env, d decision, found located, o opDecideOptions) error {
	t, st, decided := found.target, found.status, found.status.Operation.Stuck
	if d.consequence != "" {
		what := fmt.Sprintf("%s the %s of %s: %s", d.name, st.Operation.Action, t.name(), d.consequence)
		if err := e.confirm(ctx, "gpuaas op "+string(d.name), what, o.yes); err != nil {
			return err
		}
	}
	st, err := found.control.decide(ctx, st, d.name, o.reason, o.key)
	if err != nil {
		return t.inError(err)
	}
	e.message("%s %s: decision accepted: %s", st.Operation.Action, t.name(), d.name)
	if !o.wait {
		st = e.reload(ctx, found.control, st, decided)
		return e.print(st, func(w io.Writer) { fmt.Fprintln(w, headline(t, st)) }, st.Operation.OperationID)
	}
	st, err = e.follow(ctx, followRequest{target: t, operation: st.Operation, control: found.control, decided: decided})
	err = e.finish(ctx, t, st, err)
	if d.name == lifecycle.DecisionCancel && st.Operation.Status == lifecycle.OperationCanceled {
		return nil // as decided
	}
	return err
}

// addReason adds --reason of a decision.
func addReason(c *cobra.Command, reason *string) {
	c.Flags().StringVar(reason, "reason", "", "reason, kept in the audit trail (required)")
}
