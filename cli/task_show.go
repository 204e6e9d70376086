package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// taskReport is a task with what is known around it.
type taskReport struct {
	wire.TaskView
	// Operation is the task's operation, nil when it cannot be read.
	Operation *lifecycle.Operation `json:"operation"`
	// WebURL is the page of the operation's run in Temporal's Web UI.
	WebURL string `json:"web_url,omitempty"`
	// Next is the command to type, of a task that is lost or whose operation is
	// parked.
	Next string `json:"next,omitempty"`
}

func newTaskShow(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "show TASK", Short: "Show a task",
		Long: `Shows a task: status, attempts, lease, progress, result, the operation that waits for
it, and the command that helps when it is lost or the operation is parked. TASK is an
id as task list prints it.

The end of its output comes last, each line after a bar. It is the node's text: control
characters are replaced.`,
		Example: "  gpuaas task show 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa\n" +
			"  gpuaas task show 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa -o json | jq -r .result.output_tail",
		Args: exactArgs("TASK"), ValidArgsFunction: e.completeTask(),
		RunE: func(c *cobra.Command, args []string) error { return runTaskShow(c.Context(), e, args[0]) },
	}
}

func runTaskShow(ctx context.Context, e *env, taskID string) error {
	api, err := e.api()
	if err != nil {
		return err
	}
	task, err := api.task(ctx, taskID)
	if err != nil {
		return withoutTask(err)
	}
	r := taskReport{TaskView: task}
	if view, err := api.operation(ctx, task.OperationID); err != nil {
		e.say("warning: its operation is not shown: %s", err)
	} else {
		r.Operation, r.WebURL = &view.Operation, view.WebURL
	}
	r.Next = e.nextOfTask(r)
	return e.print(r, func(w io.Writer) {
		e.writeTask(w, r)
		e.writeOwner(w, r)
		writeTail(w, r.Result)
	})
}

// withoutTask says where ids are found when there is no such task.
func withoutTask(err error) error {
	refusal, ok := errors.AsType[*schema.Error](err)
	if !ok || refusal.Kind != schema.KindNotFound || refusal.Next != "" {
		return err
	}
	found := *refusal
	found.Next = "gpuaas task list --all"
	return &found
}

// nextOfTask is the command that helps a task that is lost, or the parked
// operation that it belongs to; empty when nobody has to act.
func (e *printer) nextOfTask(r taskReport) string {
	t, op := nodeOfTask(r.TaskView), lifecycle.Operation{}
	if r.Operation != nil {
		op = *r.Operation
	}
	switch {
	case r.Status == task.Lost && r.Deadline != nil && r.Deadline.Before(e.clock.now()):
		// Its node would refuse it: only a new task helps.
		return lifecycle.OpCommand(string(lifecycle.DecisionRetry), op.Action, t.name()) + " --reason '…'"
	case r.Status == task.Lost:
		return "gpuaas task resume " + r.TaskID + " --reason '…'"
	case op.Status == lifecycle.OperationParked:
		return nextCommand(t, op)
	}
	return ""
}

func (e *printer) writeTask(w io.Writer, r taskReport) {
	row(w, "Task:", r.TaskID)
	row(w, "Node:", fmt.Sprintf("%s (%s)", nodeOfTask(r.TaskView).name(), r.NodeID))
	row(w, "Type:", fmt.Sprintf("%s (%s)", r.Type, r.Effect))
	row(w, "Step:", r.Step)
	row(w, "Status:", taskStatus(r.TaskView))
	if r.CancelRequested != "" {
		row(w, "  Cancel:", "requested, not acknowledged yet: "+r.CancelRequested)
	}
	row(w, "Created:", e.stamp(r.CreatedAt))
	row(w, "Attempts:", fmt.Sprintf("%d, first dispatched %s", r.Attempts, e.stampOf(r.DispatchedAt)))
	row(w, "Lease:", e.stampOf(r.LeaseUntil))
	row(w, "  Holder:", dash(r.Holder))
	row(w, "Deadline:", e.stampOf(r.Deadline))
	row(w, "Progress:", dash(r.Progress))
	if r.FinishedAt != nil {
		ended := "Finished:"
		if r.Status == task.Lost {
			ended = "Given up:"
		}
		row(w, ended, e.stamp(*r.FinishedAt))
	}
	if r.Result != nil {
		row(w, "Result:", resultLine(*r.Result))
	}
	if r.ResultProof != nil {
		row(w, "  Signed:", "by the key of certificate "+r.ResultProof.Serial)
	}
}

// resultLine is a result in words, for example failed: no such cgroup
// (task_failed).
func resultLine(r task.Result) string {
	line := string(r.Status)
	if r.Message != "" {
		line += ": " + r.Message
	}
	if r.Code != "" {
		line += fmt.Sprintf(" (%s)", r.Code)
	}
	return line
}

// currentPhase is the name of the phase that runs, is parked or ended last.
func currentPhase(op lifecycle.Operation) string {
	name := ""
	for _, p := range op.Phases {
		if p.State != lifecycle.PhasePending {
			name = p.Name
		}
	}
	if name == "" && op.Stuck != nil {
		name = op.Stuck.Phase
	}
	return name
}

// writeOwner is the task's operation and what to type.
func (e *printer) writeOwner(w io.Writer, r taskReport) {
	if o := r.Operation; o != nil {
		row(w, "Operation:", fmt.Sprintf("%s, %s in phase %s, by %s, since %s", o.Action, o.Status, dash(currentPhase(*o)), o.Actor, e.stampOf(o.StartedAt)))
		if s := o.Stuck; s != nil {
			row(w, "  Waits:", fmt.Sprintf("%s (%s), since %s", s.Message, s.Reason, e.stamp(s.Since)))
		}
	}
	row(w, "  ID:", r.OperationID)
	row(w, "  Run:", strings.TrimSpace(r.WorkflowID+" "+r.RunID))
	row(w, "  Web:", dash(r.WebURL))
	if r.Next != "" {
		row(w, "Next:", r.Next)
	}
}

// writeTail prints the end of the output. The bar marks its lines as the node's.
func writeTail(w io.Writer, r *task.Result) {
	if r == nil || r.OutputTail == "" {
		return
	}
	lines := strings.Split(strings.TrimRight(r.OutputTail, "\r\n"), "\n")
	fmt.Fprintf(w, "\nEnd of the output on the node (%s):\n", count(len(lines), "line"))
	for _, line := range lines {
		row(w, "  | "+strings.ReplaceAll(strings.TrimRight(line, "\r"), "\t", "    "))
	}
}
