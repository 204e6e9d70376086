package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// show publishes the operation as the run's current details: what the Web UI
// shows to whoever looks at night.
func (op *operation) show(ctx workflow.Context) {
	workflow.SetCurrentDetails(ctx, op.markdown())
}

func (op *operation) markdown() string {
	o := op.status.Operation
	var b strings.Builder
	fmt.Fprintf(&b, "### %s %s: %s\n\n", o.Action, op.name(), o.Status)
	for _, p := range o.Phases {
		b.WriteString(phaseLine(p))
	}
	switch {
	case o.Stuck != nil:
		b.WriteString(stuckText(*o.Stuck))
	case o.Outcome != "":
		fmt.Fprintf(&b, "\n%s\n", o.Outcome)
	case o.DeadlineAt != nil:
		fmt.Fprintf(&b, "\nParks at **%s** if this phase is not done by then.\n", clock(*o.DeadlineAt))
		b.WriteString(op.hint())
	}
	return b.String()
}

// hint says what somebody has to do for the running phase to be reached.
func (op *operation) hint() string {
	for _, spec := range lifecycle.Phases(op.in.Action, op.in.Options) {
		if spec.Hint != "" && spec.Name == op.status.Operation.Phases[op.phase].Name {
			return "\nWhat to do: " + strings.ReplaceAll(spec.Hint, "NODE", op.name()) + "\n"
		}
	}
	return ""
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
		line += ": " + p.Reason
	}
	return line + "\n"
}

func stuckText(s lifecycle.Stuck) string {
	return fmt.Sprintf("\n**Waits for: %s** since %s\n\n%s (`%s`)\n\nLikely cause: %s\n\nNext: `%s`\n",
		s.WaitingOn, clock(s.Since), s.Message, s.Reason, s.Cause, s.Next)
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
