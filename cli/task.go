package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newTask(e *env) *cobra.Command {
	return newGroup("task", "Manage the tasks of nodes",
		`Lists and shows the tasks that operations dispatch to nodes, and resolves lost tasks. A
task is lost when its node stopped responding, the task may have run, and a second run may
do damage.`,
		newTaskList(e), newTaskShow(e), newTaskResume(e), newTaskCancel(e))
}

// taskName describes a task, for example workload.drain on gpu-17.
func taskName(t wire.TaskView) string {
	return fmt.Sprintf("%s on %s", t.Type, nodeOfTask(t).name())
}

func nodeOfTask(t wire.TaskView) target { return target{id: t.NodeID, host: t.Host} }

// findTask returns a task with the end of its output.
func findTask(ctx context.Context, api *adminclient.Client, id string) (wire.TaskView, error) {
	if !schema.IsID(id) {
		return wire.TaskView{}, schema.NewError(schema.KindNotFound, "no task %q", id).WithNext("gpuaas task list --all")
	}
	view, err := decode[wire.TaskView](api.GetTask(ctx, uuid.MustParse(id), nil))
	if e := schema.AsError(err); schema.KindOf(err) == schema.KindNotFound {
		return view, e.WithNext("gpuaas task list --all")
	}
	return view, err
}

func newTaskList(e *env) *cobra.Command {
	var q adminclient.ListTasksParams
	var all, orphaned bool
	var limit uint
	c := e.command("list", "List the tasks of nodes",
		`Lists the tasks that have not ended, newest first: node, status, number of dispatches
and the time left of the lease. A lost task counts as open.`,
		"  gpuaas task list\n  gpuaas task list --node gpu-17 --all\n"+
			"  gpuaas task list -o json | jq -r '.tasks[] | select(.status == \"lost\") | .task_id'",
		func(ctx context.Context, _ string) error {
			q.All, q.Orphaned = &all, &orphaned
			tasks, err := listTasks(ctx, e.api(), q, limit)
			if err != nil {
				return err
			}
			empty := "there are no open tasks; --all lists those that have ended"
			switch {
			case orphaned:
				empty = "every result reached its operation"
			case all:
				empty = "there are no tasks"
			}
			now := e.clock.now()
			return printList(e.console, listing[wire.TaskView]{
				object: wire.TaskList{Tasks: tasks}, rows: tasks, empty: empty,
				header: []string{"NODE", "TYPE", "STATUS", "AGE", "ATTEMPTS", "LEASE", "PROGRESS", "ID", "EFFECT", "STEP", "OPERATION"}, wide: 3,
				cells: func(t wire.TaskView) []string {
					return []string{nodeOfTask(t).name(), string(t.Type), taskStatus(t), lifecycle.Span(now.Sub(t.CreatedAt)),
						strconv.FormatInt(t.Attempts, 10), leaseLeft(t, now), dash(progressOf(t)), t.TaskID, string(t.Effect), t.Step, t.OperationID}
				},
				name: func(t wire.TaskView) string { return t.TaskID },
			})
		})
	c.Aliases = []string{"ls"}
	e.addNode(c, &q.Node, "only the tasks of `NODE`")
	c.Flags().BoolVar(&all, "all", false, "include tasks that have ended")
	c.Flags().BoolVar(&orphaned, "orphaned", false, "only tasks whose result no operation accepted: its run was terminated or is unknown")
	c.Flags().UintVar(&limit, "limit", wire.MaxPage, "list at most N; 0 for all")
	return c
}

// taskStatus is a task's status with its qualifiers.
func taskStatus(t wire.TaskView) string {
	s := string(t.Status)
	if t.Paused {
		s += " (paused)"
	}
	if t.CancelRequested != "" {
		s += " (cancel requested)"
	}
	return s
}

// progressOf is what the agent reported last of a task that has not succeeded.
func progressOf(t wire.TaskView) string {
	if t.Status == task.Succeeded {
		return ""
	}
	return t.Progress
}

// leaseLeft is the rest of the newest lease, for example 45s left.
func leaseLeft(t wire.TaskView, now time.Time) string {
	switch {
	case t.LeaseUntil == nil || t.Status.Terminal():
		return "-"
	case t.LeaseUntil.Before(now):
		return "expired " + lifecycle.Span(now.Sub(*t.LeaseUntil)) + " ago"
	}
	return lifecycle.Span(t.LeaseUntil.Sub(now)) + " left"
}

// newTaskResume makes the command that dispatches a lost task again.
func newTaskResume(e *env) *cobra.Command {
	return newTaskDecide(e, decision{name: lifecycle.DecisionResume, short: "Dispatch a lost task to its node again",
		long: `Dispatches a lost task to its node again; its operation then waits for it again.
First inspect the node: the task may have completed before the node stopped responding,
and a node that lost its journal runs the task from the beginning. If the node responds
again with the task, the task continues without a decision. gpuaas op retry NODE
abandons the task and creates a new one.`,
		example:     "  gpuaas task resume 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa --reason \"node rebooted, no job ran, TCK-7\"",
		consequence: "it may have run already, and may run once more"}, task.Lost,
		func(ctx context.Context, id uuid.UUID, d wire.TaskDecision) (*http.Response, error) {
			return e.api().ResumeTask(ctx, id, nil, d)
		})
}

// newTaskCancel makes the command that ends a task.
func newTaskCancel(e *env) *cobra.Command {
	return newTaskDecide(e, decision{name: lifecycle.DecisionCancel, short: "Cancel a task",
		long: `Ends a task. A task that no node is running ends at once. A node that is running the task
gets a request to stop it. The changes that the task made on the node remain: its operation
parks and waits for a decision. gpuaas op retry NODE dispatches a new task, gpuaas op
cancel NODE undoes the whole operation.`,
		example:     "  gpuaas task cancel 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa --reason \"wrong deadline, TCK-8\"",
		consequence: "its changes on the node remain, and its operation parks"}, "",
		func(ctx context.Context, id uuid.UUID, d wire.TaskDecision) (*http.Response, error) {
			return e.api().CancelTask(ctx, id, nil, d)
		})
}

// newTaskDecide makes the command of a decision about a task, which send delivers.
// Completion offers the tasks of the status only, or every open task.
func newTaskDecide(e *env, v decision, only task.Status, send func(context.Context, uuid.UUID, wire.TaskDecision) (*http.Response, error)) *cobra.Command {
	var reason string
	var yes bool
	var c *cobra.Command
	c = e.command(string(v.name)+" TASK", v.short, v.long, v.example, func(ctx context.Context, id string) error {
		if err := checkReason(c.CommandPath(), reason, true); err != nil {
			return err
		}
		before, err := findTask(ctx, e.api(), id)
		if err != nil {
			return err
		}
		if err := e.confirm(ctx, c.CommandPath(), fmt.Sprintf("%s %s: %s", v.name, taskName(before), v.consequence), yes); err != nil {
			return err
		}
		after, err := decode[wire.TaskView](send(ctx, uuid.MustParse(before.TaskID), wire.TaskDecision{Reason: reason}))
		if err != nil {
			return nodeOfTask(before).inError(err)
		}
		e.message("%s: decision accepted: %s", taskName(after), v.name)
		e.message("see: gpuaas task show %s", after.TaskID)
		return e.print(after, func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", taskName(after), taskStatus(after)) }, after.TaskID)
	})
	c.ValidArgsFunction = e.completeTask(only)
	addReason(c, &reason)
	addYes(c, &yes)
	return c
}
