package workflows

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
)

// show publishes the operation as the run's current details in the Web UI.
func (st *state) show(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, st.markdown())
}

// maxShown is how many characters of a message or a reason the details show. gpuaas op
// show prints all of it.
const maxShown = 300

// shown returns a message or a reason in the details, as a code span: nodes and operators
// write parts of them, and the details list commands for operators to run.
func shown(s string) string { return text.Quote(s, maxShown) }

// shownName returns a name: as it is if it has the form of one.
func shownName(s string) string {
	return text.Plain(s, maxShown, "._:-")
}

func (st *state) markdown() string {
	o := st.status.Operation
	var b strings.Builder
	fmt.Fprintf(&b, "### %s %s: %s\n\n", shownName(string(o.Action)), shownName(st.name()), o.Status)
	for _, p := range o.Phases {
		b.WriteString(phaseLine(p))
	}
	switch {
	case o.Stuck != nil:
		b.WriteString(st.stuckText(*o.Stuck))
	case o.Outcome != "":
		fmt.Fprintf(&b, "\n%s\n", shown(o.Outcome))
	case o.DeadlineAt != nil:
		b.WriteString(st.runningText(*o.DeadlineAt))
	}
	return b.String()
}

// runningText describes what the running phase waits for, and its last failure.
func (st *state) runningText(deadline time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nWaiting on: **%s**. Parks at **%s** if this phase is not done by then.\n", st.spec().WaitingOn, clock(deadline))
	if hint := st.spec().Hint; hint != "" {
		fmt.Fprintf(&b, "\nTo do: %s\n", strings.ReplaceAll(hint, "NODE", st.name()))
	}
	if f := st.failed; f.message != "" && f.phase == st.phase {
		fmt.Fprintf(&b, "\nLast failure of this phase, at %s: %s\n", clock(f.at), shown(f.message))
	}
	b.WriteString("\nAttempts of the running activity and its last error: tab Pending Activities.\n")
	return b.String()
}

// failed is the newest failure of a phase.
type failed struct {
	phase   int
	message string
	at      time.Time
}

// noteFailure keeps the newest failure of the current phase for the details.
func (st *state) noteFailure(ctx workflow.Context, message string) {
	st.failed = failed{phase: st.phase, message: message, at: now(ctx)}
}

func phaseLine(p lifecycle.Phase) string {
	box := " "
	if p.State == lifecycle.PhaseCompleted || p.State == lifecycle.PhaseForced || p.State == lifecycle.PhaseSkipped {
		box = "x"
	}
	line := fmt.Sprintf("- [%s] %s — %s", box, p.Title, p.State)
	if p.StartedAt != nil {
		line += " since " + clock(*p.StartedAt)
	}
	if p.Attempt > 1 {
		line += fmt.Sprintf(", attempt %d", p.Attempt)
	}
	if p.Reason != "" {
		line += ": " + shown(p.Reason)
	}
	return line + "\n"
}

// stuckText describes why the operation is parked and lists its options: the command
// of each, and the argument of the resolve update for the Web UI.
func (st *state) stuckText(s lifecycle.Stuck) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n**Waiting on: %s** since %s\n\n%s (`%s`)\n\nLikely cause: %s\n",
		s.WaitingOn, clock(s.Since), shown(s.Message), s.Reason, s.Cause)
	fmt.Fprintf(&b, "\nWhat the probes of this cause found: `gpuaas op cause %s`\n", st.name())
	if s.Retrying != nil {
		b.WriteString("\n" + st.retryingText(*s.Retrying) + "\n")
	}
	if len(s.Options) > 0 {
		b.WriteString("\nOptions, least harmful first:\n\n")
	}
	var possible []lifecycle.Decision
	for _, o := range s.Options {
		fmt.Fprintf(&b, "- **%s** (harm: %s): %s: `%s`\n", o.Decision, o.Harm, o.Does, o.Command)
		if slices.Contains(lifecycle.Decisions(), o.Decision) {
			possible = append(possible, o.Decision)
		}
	}
	if len(possible) > 0 {
		b.WriteString(st.resolveText(s, possible))
	}
	return b.String()
}

// resolveText describes how to decide on this page: the resolve update and its argument
// for the first of the decisions, which names this park. The run rejects the argument when
// the operation is no longer in it.
func (st *state) resolveText(s lifecycle.Stuck, possible []lifecycle.Decision) string {
	argument := lifecycle.ResolveRequest{
		OperationID: st.in.OperationID, Phase: s.Phase, StuckSince: &s.Since, RunID: st.status.Operation.RunID,
		Decision: possible[0], Reason: lifecycle.ReasonPlaceholder, By: lifecycle.NamePlaceholder,
	}
	return fmt.Sprintf("\nWithout the CLI: in More Actions, send the update `%s` with this input. Replace %s and %s. "+
		"Possible decisions: %s.\n\n`%s`\n", lifecycle.UpdateResolve, lifecycle.ReasonPlaceholder, lifecycle.NamePlaceholder,
		text.Or(possible), argument.JSON())
}

func (st *state) retryingText(r lifecycle.Retrying) string {
	when := "now"
	if r.NextAt != nil {
		when = "at " + clock(*r.NextAt)
	}
	line := fmt.Sprintf("The worker retries this phase %s, %d times so far. The operation continues when that succeeds.", when, r.Tries)
	if f := st.failed; r.Tries > 0 && f.message != "" && f.phase == st.phase {
		line += fmt.Sprintf(" The last failure was at %s: %s", clock(f.at), shown(f.message))
	}
	return line
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
