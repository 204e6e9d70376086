package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// taskReport is a task with its operation.
type taskReport struct {
	wire.TaskView
	// Operation is the task's operation, nil when it cannot be read.
	Operation *lifecycle.Operation `json:"operation"`
	// WebURL is the page of the operation's run in Temporal's Web UI.
	WebURL string `json:"web_url,omitempty"`
	// Next is the command that resolves a lost task or a parked operation.
	Next string `json:"next,omitempty"`
}

func newTaskShow(e *env) *cobra.Command {
	return e.command("show TASK", "Show a task",
		`Shows a task: status, attempts, lease, progress, result, the operation that waits for
it, and the command to run when the task is lost or the operation is parked. TASK is an
id that gpuaas task list prints.

The end of the task's output comes last, with a bar before each line. The node writes the
output, so control characters are replaced.`,
		"  gpuaas task show 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa\n"+
			"  gpuaas task show 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa -o json | jq -r .result.output_tail",
		func(ctx context.Context, id string) error {
			api := e.api()
			view, err := findTask(ctx, api, id)
			if err != nil {
				return err
			}
			r := taskReport{TaskView: view}
			if view.Type == task.UpdateTrust { // it belongs to a rotation
				r.Next = "gpuaas rotate show"
				return e.print(r, func(w io.Writer) { e.writeTask(w, r) }, r.TaskID)
			}
			if op, err := decode[wire.OperationView](api.GetOperation(ctx, view.OperationID, nil)); err != nil {
				e.message("warning: its operation is not shown: %s", err)
			} else {
				r.Operation, r.WebURL = &op.Operation, op.WebURL
			}
			r.Next = nextOfTask(r, e.clock.now())
			return e.print(r, func(w io.Writer) { e.writeTask(w, r) }, r.TaskID)
		})
}

// nextOfTask is the command that resolves a lost task or the parked operation of the
// task; empty when no action is needed.
func nextOfTask(r taskReport, now time.Time) string {
	t, op := nodeOfTask(r.TaskView), lifecycle.Operation{}
	if r.Operation != nil {
		op = *r.Operation
	}
	switch {
	case r.Status == task.Lost && r.Deadline != nil && r.Deadline.Before(now):
		// The node would reject the task: only a new one helps.
		return cmp.Or(op.Stuck, &lifecycle.Stuck{}).Command(lifecycle.DecisionRetry, op.Action, t.name(), op.OperationID)
	case r.Status == task.Lost:
		return lifecycle.ResumeTask(r.TaskID).Command
	case op.Status == lifecycle.OperationParked:
		return nextCommand(t, op.Action, op.Stuck)
	}
	return ""
}

func (e *console) writeTask(w io.Writer, r taskReport) {
	cancel, finished := "", "Finished:"
	if r.CancelRequested != "" {
		cancel = "requested, not acknowledged yet: " + r.CancelRequested
	}
	if r.Status == task.Lost {
		finished = "Lost:"
	}
	fields(w, "Task:", r.TaskID, "Node:", fmt.Sprintf("%s (%s)", nodeOfTask(r.TaskView).name(), r.NodeID),
		"Type:", fmt.Sprintf("%s (%s)", r.Type, r.Effect), "Step:", r.Step, "Status:", taskStatus(r.TaskView), "  Cancel:", cancel,
		"Created:", e.stamp(r.CreatedAt), "Attempts:", fmt.Sprintf("%d, first dispatched %s", r.Attempts, e.stampOf(r.DispatchedAt)),
		"Lease:", e.stampOf(r.LeaseUntil), "  Holder:", dash(r.Holder), "Deadline:", e.stampOf(r.Deadline), "Progress:", dash(progressOf(r.TaskView)),
		finished, e.stampIf(r.FinishedAt))
	if p := r.Result; p != nil {
		line := string(p.Status)
		if p.Message != "" {
			line += ": " + p.Message
		}
		if p.Code != "" {
			line += fmt.Sprintf(" (%s)", p.Code)
		}
		row(w, "Result:", line)
	}
	if r.ResultProof != nil {
		row(w, "  Signed:", "by the key of certificate "+r.ResultProof.Serial)
	}
	if r.Type == task.UpdateTrust {
		row(w, "Rotation:", "of the node CA")
	}
	if o := r.Operation; o != nil {
		e.writeHolder(w, wire.OperationSummary{Action: o.Action, Status: o.Status, Phase: currentPhase(*o), Actor: o.Actor, Stuck: o.Stuck}, o.StartedAt)
	}
	fields(w, "  ID:", r.OperationID, "  Run:", strings.TrimSpace(r.WorkflowID+" "+r.RunID), "  Web:", dash(r.WebURL), "Next:", r.Next)
	if r.Result == nil || r.Result.OutputTail == "" {
		return
	}
	lines := strings.Split(strings.TrimRight(r.Result.OutputTail, "\r\n"), "\n")
	fmt.Fprintf(w, "\nEnd of the output on the node (%s):\n", text.Count(len(lines), "line"))
	for _, line := range lines { // the bar marks the lines as the node's
		row(w, "  | "+strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", "    "))
	}
}

// currentPhase is the phase of an operation that runs, is parked or ended last.
func currentPhase(o lifecycle.Operation) (name string) {
	if o.Stuck != nil {
		name = o.Stuck.Phase
	}
	for _, p := range o.Phases {
		if p.State != lifecycle.PhasePending {
			name = p.Name
		}
	}
	return name
}

// writeHolder shows an operation in one line, and why it is parked.
func (e *console) writeHolder(w io.Writer, o wire.OperationSummary, started *time.Time) {
	row(w, "Operation:", fmt.Sprintf("%s, %s in phase %s, by %s, since %s", o.Action, o.Status, dash(o.Phase), o.Actor, e.stampOf(started)))
	if s := o.Stuck; s != nil {
		row(w, "  Waiting:", fmt.Sprintf("%s (%s), since %s", s.Message, s.Reason, e.stamp(s.Since)))
	}
}
