package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// lifecycleOptions are the flags that every verb which starts a workflow has.
type lifecycleOptions struct {
	wait   bool
	noWait bool
	// timeout bounds the waiting. Defaults to the sum of the phases' budgets.
	timeout time.Duration
	dryRun  bool
	reason  string
	yes     bool
	key     string
}

func (o *lifecycleOptions) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.wait, "wait", true, "wait until the operation ends or parks (default)")
	f.BoolVar(&o.noWait, "no-wait", false, "return as soon as the operation is accepted")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and what blocks it; change nothing")
	f.StringVar(&o.reason, "reason", "", "reason, kept in the audit trail and shown with the operation")
	f.StringVar(&o.key, "idempotency-key", "", "repeat a request safely: the same key joins the operation it started")
}

// addTimeout adds --timeout as the bound of the waiting.
func (o *lifecycleOptions) addTimeout(c *cobra.Command) {
	c.Flags().DurationVar(&o.timeout, "timeout", 0, "how long to wait; the operation keeps running (default: what its phases may take)")
}

// waitsOnRequest makes --no-wait the default, for the verbs after which somebody
// has to do something on the node first.
func (o *lifecycleOptions) waitsOnRequest(c *cobra.Command) {
	f := c.Flags().Lookup("wait")
	f.DefValue, f.Usage, o.wait = "false", "wait until the operation ends or parks", false
}

// addYes adds --yes, for the verbs that ask.
func (o *lifecycleOptions) addYes(c *cobra.Command) {
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation; required without a terminal")
}

// check refuses what the admin API would refuse as well.
func (o *lifecycleOptions) check(c *cobra.Command) error {
	switch {
	case c.Flags().Changed("wait") && o.wait && o.noWait:
		return usagef(c.CommandPath(), "--wait and --no-wait exclude each other")
	case strings.TrimSpace(o.reason) == placeholder:
		return usagef(c.CommandPath(), "--reason: %s is a placeholder, give the reason itself", placeholder)
	case !plainText(o.reason, wire.MaxReason):
		return usagef(c.CommandPath(), "--reason: want one line of at most %d characters", wire.MaxReason)
	case !plainText(o.key, wire.MaxIdempotencyKey):
		return usagef(c.CommandPath(), "--idempotency-key: want one line of at most %d characters", wire.MaxIdempotencyKey)
	case o.timeout < 0:
		return usagef(c.CommandPath(), "--timeout %s: want a time to wait, for example 10m", o.timeout)
	}
	return nil
}

// placeholder stands for a reason in printed commands and is none.
const placeholder = "TEXT"

func plainText(s string, most int) bool {
	return utf8.RuneCountInString(s) <= most && strings.IndexFunc(s, unicode.IsControl) < 0
}

func (o *lifecycleOptions) waits() bool { return o.wait && !o.noWait }

// verb is one lifecycle action with its options.
type verb struct {
	action  lifecycle.Action
	options lifecycle.Options
	// consequence completes the question "NODE: …; go on?". Empty for a verb
	// that does not ask.
	consequence string
}

// words are what a verb's help says.
type words struct {
	short, long, example string
}

// newLifecycle makes the command of an action; the caller adds flags of its own.
func newLifecycle(e *env, a lifecycle.Action, s words, o *lifecycleOptions, do func(ctx context.Context, arg string) error) *cobra.Command {
	c := &cobra.Command{
		Use: string(a) + " NODE", Short: s.short, Long: s.long, Example: s.example,
		Args: exactArgs("NODE"), ValidArgsFunction: e.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			return do(c.Context(), args[0])
		},
	}
	o.addFlags(c)
	return c
}

// lifecycleResult is what a lifecycle verb prints: the node as the admin API
// shows it, or the little that is known of it when the API does not answer.
type lifecycleResult struct {
	Operation lifecycle.Operation `json:"operation"`
	Node      any                 `json:"node"`
}

// runLifecycle starts the verb's workflow and, if asked to, waits for its end.
func runLifecycle(ctx context.Context, e *env, arg string, v verb, o lifecycleOptions) error {
	ctl, err := e.control(ctx)
	if err != nil {
		return err
	}
	t, err := ctl.find(ctx, arg)
	if err != nil {
		return err
	}
	if o.dryRun {
		return e.printPlan(ctx, arg, t, v)
	}
	if err := e.confirm(ctx, t, v, o.yes); err != nil {
		return err
	}
	op, err := ctl.start(ctx, t, v, o)
	if err != nil {
		if ctx.Err() != nil {
			e.say("interrupted while the operation was started: it may have been accepted; see: gpuaas op show %s", t.name())
		}
		return t.inWords(err)
	}
	if !o.waits() {
		return e.finish(ctx, t, lifecycle.OperationStatus{Operation: op, Node: t.ref()}, nil)
	}
	e.say("%s %s: %s as operation %s", v.action, t.name(), op.Status, op.OperationID)
	st, err := e.follow(ctx, followRequest{target: t, operation: op, options: v.options, control: ctl, limit: o.timeout})
	return e.finish(ctx, t, st, err)
}

// inWords puts the node's name into a refusal that says NODE or the node's id,
// so that the command in it can be pasted.
func (t target) inWords(err error) error {
	refusal, ok := errors.AsType[*schema.Error](err)
	if !ok {
		return err
	}
	named := *refusal
	named.Message = fillNode(named.Message, t.name())
	named.Next = strings.ReplaceAll(fillNode(named.Next, t.name()), t.id, t.name())
	return &named
}

// ref is what is known of the node without an operation.
func (t target) ref() lifecycle.NodeRef {
	r := lifecycle.NodeRef{NodeID: t.id, Host: t.host}
	if t.view != nil {
		r.State = t.view.State
	}
	return r
}

// finish prints the operation's object once and turns how it stands, and how
// the waiting ended, into the exit code.
func (e *env) finish(ctx context.Context, t target, st lifecycle.OperationStatus, waitErr error) error {
	result := lifecycleResult{Operation: st.Operation, Node: st.Node}
	if !e.flags.direct {
		if view, err := e.lookup(context.WithoutCancel(ctx), t.id); err == nil {
			result.Node, st.Node.State = view, view.State
		}
	}
	if err := e.print(result, func(w io.Writer) { fmt.Fprintln(w, e.headline(t, st)) }); err != nil {
		return err
	}
	if waitErr != nil {
		return waitErr
	}
	return outcome(t, st.Operation)
}

// headline is an operation in one line.
func (e *console) headline(t target, st lifecycle.OperationStatus) string {
	op := st.Operation
	line := fmt.Sprintf("%s %s: %s", op.Action, t.name(), op.Status)
	switch {
	case op.Status.Ended() && op.StartedAt != nil && op.EndedAt != nil:
		line += fmt.Sprintf(" after %s", took(op.EndedAt.Sub(*op.StartedAt)))
	case op.Status.Ended():
	default:
		line += fmt.Sprintf(" (operation %s)", op.OperationID)
	}
	if op.Outcome != "" {
		line += ": " + op.Outcome
	}
	if op.Status.Ended() && st.Node.State != "" {
		line += fmt.Sprintf("; the node is %s", st.Node.State)
	}
	return clean(line)
}

// outcome is the error of an operation that ended other than well, or parked.
func outcome(t target, op lifecycle.Operation) error {
	switch op.Status {
	case lifecycle.OperationFailed, lifecycle.OperationCanceled:
		return &exitError{schema.ExitFailed, []string{fmt.Sprintf("%s %s ended as %s", op.Action, t.name(), op.Status)}}
	case lifecycle.OperationRejected:
		return &exitError{schema.ExitRefused, []string{fmt.Sprintf("%s %s was refused", op.Action, t.name())}}
	case lifecycle.OperationParked:
		return parked(t, op)
	}
	return nil
}

// parked says why an operation waits and what to type.
func parked(t target, op lifecycle.Operation) error {
	lines := []string{fmt.Sprintf("%s %s is parked: it waits for a decision", op.Action, t.name())}
	if s := op.Stuck; s != nil {
		lines = []string{fmt.Sprintf("%s %s is parked in phase %s: %s (%s)", op.Action, t.name(), s.Phase, s.Message, s.Reason)}
		if s.Cause != "" {
			lines = append(lines, "likely cause: "+s.Cause)
		}
	}
	return &exitError{schema.ExitPending, append(lines, optionLines(t, op)...)}
}

// optionLines are the decisions that are possible now, the least harmful first.
func optionLines(t target, op lifecycle.Operation) []string {
	if op.Stuck == nil || len(op.Stuck.Options) == 0 {
		return []string{"next: " + nextCommand(t, op)}
	}
	var lines []string
	for _, o := range op.Stuck.Options {
		lines = append(lines, o.Does+": "+fillNode(o.Command, t.name()))
	}
	return lines
}

// nextCommand is the command that helps a stuck operation, with the node's name
// filled in so that it can be pasted.
func nextCommand(t target, op lifecycle.Operation) string {
	if op.Stuck == nil || op.Stuck.Next == "" {
		return lifecycle.OpCommand("show", op.Action, t.name())
	}
	return fillNode(op.Stuck.Next, t.name())
}

// hint is what somebody has to do for the running phase to be reached; empty
// when it comes by itself.
func hint(t target, op lifecycle.Operation) string {
	for i, spec := range lifecycle.PhasesOf(op.Action, lifecycle.Options{}) {
		if spec.Hint != "" && i < len(op.Phases) && op.Phases[i].Name == spec.Name && op.Phases[i].State == lifecycle.PhaseRunning {
			return strings.ReplaceAll(spec.Hint, "NODE", t.name())
		}
	}
	return ""
}
