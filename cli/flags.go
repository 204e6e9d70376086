package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/task"
)

const (
	// completionLimit bounds how long a shell waits for completions.
	completionLimit = time.Second
	// maxCompletions bounds the number of names that a shell gets.
	maxCompletions = 200
)

// complete offers names for the first argument.
func (e *env) complete(names func(ctx context.Context, api *adminclient.Client, text string) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionLimit)
		defer cancel()
		found, err := names(ctx, e.api(), text)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNode offers host names for NODE.
func (e *env) completeNode(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return e.complete(func(ctx context.Context, api *adminclient.Client, text string) (names []cobra.Completion, err error) {
		q := adminclient.ListNodesParams{Fields: new("id,host,state"), HostPrefix: given(text)}
		nodes, err := listNodes(ctx, api, q, maxCompletions)
		for _, n := range nodes {
			names = append(names, cobra.CompletionWithDesc(clean(n.Host), string(n.State)))
		}
		return names, err
	})(c, args, text)
}

// completeTask offers the open tasks for TASK, or those of one status only.
func (e *env) completeTask(only task.Status) cobra.CompletionFunc {
	return e.complete(func(ctx context.Context, api *adminclient.Client, _ string) (ids []cobra.Completion, err error) {
		tasks, err := listTasks(ctx, api, adminclient.ListTasksParams{All: new(bool)}, maxCompletions)
		for _, t := range tasks {
			if only == "" || t.Status == only {
				ids = append(ids, cobra.CompletionWithDesc(t.TaskID, clean(fmt.Sprintf("%s, %s", taskName(t), t.Status))))
			}
		}
		return ids, err
	})
}

// addNode adds --node, which restricts a list to one node.
func (e *env) addNode(c *cobra.Command, node **string) {
	c.Flags().Var(textFilter{node}, "node", "only this node (id or host name)")
	c.RegisterFlagCompletionFunc("node", func(c *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) { //nolint:errcheck // fails only for an unknown flag
		return e.completeNode(c, nil, text)
	})
}

// addChoices adds a flag with a closed set of values, which the help lists before note.
func addChoices[T ~string](c *cobra.Command, value *string, name, note string, values ...T) {
	words := make([]cobra.Completion, len(values))
	for i, v := range values {
		words[i] = string(v)
	}
	c.Flags().StringVar(value, name, *value, strings.Join(words, ", ")+note)
	c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // fails only for an unknown flag
}

// textFilter is a flag for an optional parameter of a query, which stays nil when the
// flag is not used.
type textFilter struct{ value **string }

// Set implements pflag.Value.
func (f textFilter) Set(text string) error { *f.value = &text; return nil }

// String implements pflag.Value.
func (textFilter) String() string { return "" }

// Type implements pflag.Value.
func (textFilter) Type() string { return "string" }

// listFilter is textFilter for a list with commas.
type listFilter struct{ value **[]string }

// Set implements pflag.Value.
func (f listFilter) Set(text string) error {
	all := strings.Split(text, ",")
	if *f.value != nil {
		all = append(**f.value, all...)
	}
	*f.value = &all
	return nil
}

// String implements pflag.Value.
func (listFilter) String() string { return "" }

// Type implements pflag.Value.
func (listFilter) Type() string { return "strings" }
