package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newTask(e *env) *cobra.Command {
	return newGroup("task", "What nodes are asked to do",
		`Lists and shows the tasks that operations give to nodes, and decides about those
that do not go on. A task is lost when its node fell silent while it held it and
running it twice may do harm: nobody knows then whether it ran.`,
		newTaskList(e), newTaskShow(e), newTaskResume(e), newTaskCancel(e))
}

// completeTask offers the open tasks for TASK, of the given statuses only when
// there are any.
func (e *env) completeTask(statuses ...task.Status) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		api, err := e.api()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionBudget)
		defer cancel()
		tasks, err := api.tasks(ctx, "", false, maxCompletions)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
		}
		var ids []cobra.Completion
		for _, t := range tasks {
			if len(statuses) == 0 || slices.Contains(statuses, t.Status) {
				ids = append(ids, cobra.CompletionWithDesc(t.TaskID, clean(fmt.Sprintf("%s, %s", taskName(t), t.Status))))
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// taskName is a task in words, for example workload.drain on gpu-17.
func taskName(t wire.TaskView) string {
	return fmt.Sprintf("%s on %s", t.Type, nodeOfTask(t).name())
}

func nodeOfTask(t wire.TaskView) target { return target{id: t.NodeID, host: t.Host} }
