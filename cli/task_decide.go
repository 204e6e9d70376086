package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type taskDecideOptions struct {
	reason string
	yes    bool
}

// taskVerb is one of the task verbs that decide about a task.
type taskVerb struct {
	name        string
	short, long string
	example     string
	// consequence completes the question.
	consequence string
	complete    []task.Status
	send        func(a *adminAPI, ctx context.Context, taskID, reason string) (wire.TaskView, error)
}

func newTaskResume(e *env) *cobra.Command {
	return newTaskDecide(e, taskVerb{name: "resume", short: "Offer a lost task to its node again",
		long: `Offers a lost task to its node again, and lets its operation wait for it once more.
Look on the node first what the task did before its node fell silent: it may have run
to its end already, and a node that lost its journal runs it from the beginning.

When the node itself is heard of again with the task, it goes on without a decision.
gpuaas op retry NODE gives the task up and makes a new one.`,
		example:     "  gpuaas task resume 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa --reason \"node rebooted, no job ran, TCK-7\"",
		consequence: "it may have run already, and may run once more",
		complete:    []task.Status{task.Lost}, send: (*adminAPI).resumeTask})
}

func newTaskCancel(e *env) *cobra.Command {
	return newTaskDecide(e, taskVerb{name: "cancel", short: "End a task",
		long: `Ends a task. One that no node works on ends at once; a node that works on it is
asked to stop, and reports it as cancelled. What was done stays done: the operation
parks, and waits for a decision: gpuaas op retry NODE gives the node a new task,
gpuaas op cancel NODE undoes the whole operation.`,
		example:     "  gpuaas task cancel 5f0c9f5e-7d1b-5c43-9d25-1f0f3ad1c2aa --reason \"wrong deadline, TCK-8\"",
		consequence: "what it did on the node stays done, and its operation parks",
		send:        (*adminAPI).cancelTask})
}

func newTaskDecide(e *env, v taskVerb) *cobra.Command {
	var o taskDecideOptions
	c := &cobra.Command{
		Use: v.name + " TASK", Short: v.short, Long: v.long, Example: v.example,
		Args: exactArgs("TASK"), ValidArgsFunction: e.completeTask(v.complete...),
		RunE: func(c *cobra.Command, args []string) error { return runTaskDecide(c.Context(), e, args[0], v, o) },
	}
	c.Flags().StringVar(&o.reason, "reason", "", "reason, kept in the audit trail (required)")
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation; required without a terminal")
	return c
}

func runTaskDecide(ctx context.Context, e *env, taskID string, v taskVerb, o taskDecideOptions) error {
	command := "gpuaas task " + v.name
	if strings.TrimSpace(o.reason) == "" {
		return usagef(command, "missing --reason: it is kept in the audit trail")
	}
	if !plainText(o.reason, wire.MaxReason) {
		return usagef(command, "--reason: want one line of at most %d characters", wire.MaxReason)
	}
	api, err := e.api()
	if err != nil {
		return err
	}
	task, err := api.task(ctx, taskID)
	if err != nil {
		return withoutTask(err)
	}
	if err := e.ask(ctx, command, fmt.Sprintf("%s %s: %s", v.name, taskName(task), v.consequence), o.yes); err != nil {
		return err
	}
	after, err := v.send(api, ctx, task.TaskID, o.reason)
	if err != nil {
		return nodeOfTask(task).inWords(err)
	}
	e.say("%s: decision accepted: %s", taskName(after), v.name)
	e.say("see: gpuaas task show %s", after.TaskID)
	return e.print(after, func(w io.Writer) { fmt.Fprintf(w, "%s: %s\n", taskName(after), taskStatus(after)) })
}
