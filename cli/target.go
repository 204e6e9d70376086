package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// completionBudget bounds how long a shell waits for completions.
const completionBudget = time.Second

// target is the node of a command.
type target struct {
	id   string
	host string // empty when only the id is known
	// view is the node as the admin API shows it; nil with --direct.
	view *wire.NodeView
}

// name is the host name, or the id when that is all that is known.
func (t target) name() string {
	if t.host != "" {
		return t.host
	}
	return t.id
}

// known resolves NODE by the admin API, for commands that need it anyway.
func (e *env) known(ctx context.Context, arg string) (*adminAPI, target, error) {
	api, err := e.api()
	if err != nil {
		return nil, target{}, err
	}
	t, err := apiControl{api}.find(ctx, arg)
	return api, t, err
}

// lookup reads the node from the admin API within lookupBudget.
func (e *env) lookup(ctx context.Context, arg string) (wire.NodeView, error) {
	api, err := e.api()
	if err != nil {
		return wire.NodeView{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	return api.node(ctx, arg)
}

// maxCompletions bounds the names that a shell is offered.
const maxCompletions = 200

// completeNode offers host names for NODE.
func (e *env) completeNode(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	api, err := e.api()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionBudget)
	defer cancel()
	q := adminclient.ListNodesParams{Fields: new("id,host,state")}
	if text != "" {
		q.HostPrefix = &text
	}
	nodes, err := api.nodes(ctx, q, maxCompletions)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, n := range nodes {
		names = append(names, cobra.CompletionWithDesc(clean(n.Host), string(n.State)))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNodeFlag offers host names for --node.
func (e *env) completeNodeFlag(c *cobra.Command) {
	c.RegisterFlagCompletionFunc("node", func(c *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) { //nolint:errcheck // fails only for an unknown flag
		return e.completeNode(c, nil, text)
	})
}
