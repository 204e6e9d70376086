package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/wire"
)

type taskListOptions struct {
	node  string
	all   bool
	limit int
}

func newTaskList(e *env) *cobra.Command {
	var o taskListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the nodes' tasks",
		Long: `Lists the tasks that have not ended, newest first: node, status, how often each was
dispatched and the rest of its lease. A lost task has not ended.`,
		Example: "  gpuaas task list\n  gpuaas task list --node gpu-17 --all\n" +
			"  gpuaas task list -o json | jq -r '.tasks[] | select(.status == \"lost\") | .task_id'",
		Args: noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runTaskList(c.Context(), e, o) },
	}
	c.Flags().StringVar(&o.node, "node", "", "only this node's (id or host name)")
	c.Flags().BoolVar(&o.all, "all", false, "also those that are over")
	c.Flags().IntVar(&o.limit, "limit", 1000, "list at most N; 0 for all")
	e.completeNodeFlag(c)
	return c
}

func runTaskList(ctx context.Context, e *env, o taskListOptions) error {
	api, err := e.api()
	if err != nil {
		return err
	}
	tasks, err := api.tasks(ctx, o.node, o.all, o.limit)
	if err != nil {
		return err
	}
	if tasks == nil {
		tasks = []wire.TaskView{}
	}
	if len(tasks) == 0 {
		e.say("%s", noTasks(o.all))
		if !e.machine() {
			return nil
		}
	}
	return e.print(wire.TaskList{Tasks: tasks}, func(w io.Writer) { e.writeTasks(w, tasks) })
}

func noTasks(all bool) string {
	if all {
		return "there are no tasks"
	}
	return "there are no open tasks; --all lists those that are over"
}

func (e *printer) writeTasks(w io.Writer, tasks []wire.TaskView) {
	now := e.clock.now()
	row(w, "NODE", "TYPE", "STATUS", "AGE", "ATTEMPTS", "LEASE", "PROGRESS", "ID")
	for _, t := range tasks {
		row(w, nodeOfTask(t).name(), string(t.Type), taskStatus(t), span(now.Sub(t.CreatedAt)),
			strconv.FormatInt(t.Attempts, 10), leaseLeft(t, now), dash(t.Progress), t.TaskID)
	}
}

// taskStatus is a task's status with what qualifies it.
func taskStatus(t wire.TaskView) string {
	s := string(t.Status)
	if t.Paused {
		s += " (paused)"
	}
	if t.CancelRequested != "" {
		s += " (cancel asked)"
	}
	return s
}

// leaseLeft is how long the newest lease still is, for example 45s left.
func leaseLeft(t wire.TaskView, now time.Time) string {
	switch {
	case t.LeaseUntil == nil || t.Status.Terminal():
		return "-"
	case t.LeaseUntil.Before(now):
		return fmt.Sprintf("over for %s", span(now.Sub(*t.LeaseUntil)))
	}
	return fmt.Sprintf("%s left", span(t.LeaseUntil.Sub(now)))
}
