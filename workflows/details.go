package workflows

import (
	"fmt"
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
	if text.IsToken(s, maxShown, "._:-") {
		return s
	}
	return shown(s)
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
		fmt.Fprintf(&b, "\nWaiting on: **%s**. Parks at **%s** if this phase is not done by then.\n",
			st.spec().WaitingOn, clock(*o.DeadlineAt))
		if hint := st.spec().Hint; hint != "" {
			fmt.Fprintf(&b, "\nTo do: %s\n", strings.ReplaceAll(hint, "NODE", st.name()))
		}
	}
	return b.String()
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
	if len(s.Options) > 0 {
		b.WriteString("\nOptions, least harmful first:\n")
	}
	for _, o := range s.Options {
		fmt.Fprintf(&b, "- **%s** (harm: %s): %s: `%s`\n", o.Decision, o.Harm, o.Does, o.Command)
	}
	if s.Retrying != nil {
		b.WriteString("\n" + retryingText(*s.Retrying) + "\n")
	}
	if len(s.Options) == 0 {
		return b.String()
	}
	fmt.Fprintf(&b, "\nWithout the CLI: send update `%s` with `%s`\n",
		lifecycle.UpdateResolve, s.ResolveArgument(st.in.OperationID))
	return b.String()
}

func retryingText(r lifecycle.Retrying) string {
	when := "now"
	if r.NextAt != nil {
		when = "at " + clock(*r.NextAt)
	}
	return fmt.Sprintf("The worker retries this phase %s, %d times so far. The operation continues when that succeeds.", when, r.Tries)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
