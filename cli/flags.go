package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// flagError is the usage error of an invalid flag. It says what the value must be,
// without the words of Go's parsers.
func flagError(c *cobra.Command, err error) error {
	if _, group := c.Annotations[groupMark]; group && c.Flags().NArg() > 0 {
		return unknownCommand(c, c.Flags().Arg(0)) // the flag is one of a command that was misspelled
	}
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usagef(c.CommandPath(), "%s", err)
	}
	f := invalid.GetFlag()
	var must string
	switch f.Value.Type() {
	case "int":
		must = "must be a number"
	case "uint":
		must = "must be a number, 0 or greater"
	case "bool":
		must = "must be true or false"
	case "duration":
		must = "must be a duration with a unit, for example 90s, 30m or 2h"
	default:
		must = errors.Unwrap(err).Error()
	}
	return usagef(c.CommandPath(), "--%s %s: %s", f.Name, invalid.GetValue(), must)
}

// inFlags replaces the fields of the admin API's requests by the flags that set them.
func inFlags() *strings.Replacer {
	return strings.NewReplacer("region_code", "--region", "gpus_total", "--gpus", "onboarding_mode", "--mode", "lifecycle_class", "--class",
		"remove_labels", "--label", "labels must", "--label must", "sku must", "--sku must", "reason must", "--reason must",
		"workload_driver", "--workload-driver", "gpu_model", "--gpu-model", "max_gpus", "--max-gpus", "min_cpus", "--min-cpus", "min_memory_bytes", "--min-memory",
		"grace_seconds must be 0 to 2592000, thirty days", "--grace must be 0s to 720h, thirty days", wire.HeaderIdempotencyKey, "--idempotency-key")
}

// addNode adds --node, which restricts a list to one node.
func (e *env) addNode(c *cobra.Command, node **string, usage string) {
	c.Flags().Func("node", usage, optional(node))
	completes(c, "node", func(c *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return e.completeNode(c, nil, text)
	})
}

// addSelector adds -l, which restricts a list to the nodes that match.
func addSelector(c *cobra.Command, selector **string) {
	c.Flags().FuncP("selector", "l", "only nodes that match `SELECTOR`, for example rack=r7,tier!=test", optional(selector))
}

// selectorHelp documents -l.
const selectorHelp = `-l selects by labels and by the properties region, sku, state, provider, class and
host, in kubectl's grammar: k=v, k!=v, k in (a,b), k notin (a,b), k, !k.`

// addSince adds --since. what is the list's rows and what they did at their time.
func addSince(c *cobra.Command, since **string, what string) {
	c.Flags().Func("since", "only "+what+" since a `TIME`, or within a duration such as 24h", func(text string) error {
		*since = &text
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return nil
		}
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
			return errors.New("must be a time such as 2026-03-01T12:00:00Z, or a duration such as 24h")
		}
		return nil
	})
}

// addTimeout adds --timeout, the limit of a wait. Without it the default applies.
func addTimeout(c *cobra.Command, timeout *time.Duration, usage string) {
	c.Flags().Func("timeout", usage, func(text string) (err error) {
		if *timeout, err = time.ParseDuration(text); err != nil || *timeout <= 0 {
			return errors.New("must be a duration with a unit, greater than 0, for example 90s, 30m or 2h")
		}
		return nil
	})
}

// optional sets a parameter of a query, which stays nil without the flag.
func optional(value **string) func(string) error {
	return func(text string) error { *value = &text; return nil }
}

// listedValues is how many values the help of a flag lists; completion offers all.
const listedValues = 14

// addFilter adds a flag for alternatives, separated by commas. allowed, if not empty,
// is the closed set of its values.
func addFilter[T ~string](c *cobra.Command, value **[]string, name, usage string, allowed ...T) {
	words := texts(allowed)
	if n := len(words); n > 0 && n <= listedValues {
		usage += ": " + strings.Join(words, ", ")
	}
	addOpenFilter(c, value, name, usage, words, func(word string) error { return oneOf(word, words) })
}

// addOpenFilter is addFilter for values that valid accepts. Completion offers suggested.
func addOpenFilter(c *cobra.Command, value **[]string, name, usage string, suggested []string, valid func(string) error) {
	c.Flags().Func(name, usage, func(text string) error {
		all := strings.Split(text, ",")
		for _, word := range all {
			if err := valid(word); err != nil {
				return err
			}
		}
		if *value != nil {
			all = append(**value, all...)
		}
		*value = &all
		return nil
	})
	completes(c, name, cobra.FixedCompletions(suggested, cobra.ShellCompDirectiveNoFileComp))
}

// addChoices adds a flag for one value of a closed set.
func addChoices[T ~string](c *cobra.Command, value *T, name, usage string, allowed ...T) {
	words := texts(allowed)
	c.Flags().Func(name, usage+": "+strings.Join(words, ", "), func(text string) error {
		*value = T(text)
		return oneOf(text, words)
	})
	completes(c, name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func texts[T ~string](values []T) (words []string) {
	for _, v := range values {
		words = append(words, string(v))
	}
	return words
}

// oneOf rejects a text that is not in a closed set; the empty set is open.
func oneOf(text string, allowed []string) error {
	if len(allowed) > 0 && !slices.Contains(allowed, text) {
		return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
	}
	return nil
}

// maxCompletions bounds the number of completions.
const maxCompletions = 200

// completes sets the completion of a flag of the command.
func completes(c *cobra.Command, flag string, values cobra.CompletionFunc) {
	c.RegisterFlagCompletionFunc(flag, values) //nolint:errcheck // fails only for an unknown flag
}

// complete offers names for the first argument.
func (e *env) complete(names func(ctx context.Context, api *adminclient.Client, text string) ([]cobra.Completion, error)) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), e.completionLimit)
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
		nodes, err := listNodes[wire.NodeView](ctx, api, q, maxCompletions)
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
