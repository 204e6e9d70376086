package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"

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
	// phase and since are the park that the decision is about, as printed commands name it.
	phase string
	since *time.Time
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
	addYes(c, &o.yes)
	c.Flags().StringVar(&o.phase, "phase", "", "the `PHASE` that the decision is about; rejected when the operation is in another one")
	c.Flags().Func("stuck-since", "the `TIME` of the park that the decision is about; rejected when the operation has left it", func(text string) error {
		since, err := time.Parse(time.RFC3339Nano, text)
		if o.since = &since; err != nil {
			return errors.New("must be a time as it is printed, such as 2026-03-01T12:00:00.123456Z")
		}
		return nil
	})
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
	bulk := bulkFlags{noun: "operation", selectors: []string{"selector", "stuck-reason", "action"},
		one:  []string{"operation", "reissue", "phase", "stuck-since", "wait", "idempotency-key"},
		many: []string{"allow-harm", "dry-run", "max-parallel"}}
	c.Args = bulk.check
	one := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !bulk.selected(c) {
			return one(c, args)
		}
		if e.flags.direct {
			return usagef(c.CommandPath(), "a decision about many operations needs the admin API and does not work with --direct")
		}
		if err := checkReason(c.CommandPath(), o.reason, true); err != nil {
			return err
		}
		return runOpDecideMany(c.Context(), e, d, *o)
	}
}

func runOpDecide(ctx context.Context, e *env, d decision, found located, o opDecideOptions) error {
	t, st, decided := found.target, found.status.OperationStatus, found.status.Operation.Stuck
	r := o.request(d.name, st.Operation)
	if does := d.damage(st.Operation, r); does != "" {
		what := fmt.Sprintf("%s the %s of %s%s", d.name, st.Operation.Action, t.name(), does)
		if err := e.confirm(ctx, "gpuaas op "+string(d.name), what, o.yes); err != nil {
			return err
		}
	}
	st, err := found.control.decide(ctx, st, r, o.key)
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

// request is the decision as it is sent. The flags say what it is about, and otherwise the
// operation as it was read: its park, or for a decision about the work of a phase that runs,
// that phase.
func (o *opDecideOptions) request(d lifecycle.Decision, op lifecycle.Operation) lifecycle.ResolveRequest {
	r := lifecycle.ResolveRequest{Decision: d, Reason: o.reason, Phase: o.phase, StuckSince: o.since}
	switch {
	case r.Phase != "" || r.StuckSince != nil:
	case op.Stuck != nil:
		r.Phase, r.StuckSince = op.Stuck.Phase, &op.Stuck.Since
	case d == lifecycle.DecisionSkip || d == lifecycle.DecisionForce:
		r.Phase = currentPhase(op)
	}
	return r
}

// damage is the end of the question before a decision that may cause damage: what it does in
// the park that it is about, or in general. It is empty for a harmless decision.
func (d decision) damage(op lifecycle.Operation, r lifecycle.ResolveRequest) string {
	plan, _ := lifecycle.PlanOf(op.Action, lifecycle.Options{})
	effect, where := lifecycle.Option{Does: d.consequence}, ""
	if d.name == lifecycle.DecisionCancel {
		effect = plan.Cancel
	}
	if s := op.Stuck; s != nil && r.Phase == s.Phase && (r.StuckSince == nil || r.StuckSince.Equal(s.Since)) {
		for _, o := range s.Options {
			if o.Decision == d.name {
				effect, where = o, " in phase "+s.Phase
			}
		}
	}
	if d.consequence == "" && (effect.Harm == lifecycle.HarmNone || effect.Harm == "") {
		return ""
	}
	return where + ": " + lowerFirst(effect.Does)
}

// lowerFirst makes the first letter of a sentence that follows a colon small.
func lowerFirst(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	if size == 0 {
		return s
	}
	return string(unicode.ToLower(first)) + s[size:]
}

// addReason adds --reason of a decision.
func addReason(c *cobra.Command, reason *string) {
	c.Flags().StringVar(reason, "reason", "", "reason, kept in the audit trail (required)")
}
