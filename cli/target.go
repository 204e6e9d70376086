package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// lookupBudget bounds a look-up that a command can do without.
const lookupBudget = 3 * time.Second

// completionBudget bounds what a shell waits for at the Tab key.
const completionBudget = time.Second

// target is the node that a command is about.
type target struct {
	id   string
	host string // empty when nobody could be asked
	// view is the node as the admin API shows it; nil when it did not answer.
	view *wire.NodeView
}

// name is what people call the node.
func (t target) name() string {
	if t.host != "" {
		return t.host
	}
	return t.id
}

// find resolves NODE: an id is used as it is, a host name is looked up through
// the admin API, and through Temporal when the admin API is unreachable.
func (e *env) find(ctx context.Context, arg string) (target, error) {
	view, err := e.lookup(ctx, arg)
	switch {
	case err == nil:
		return target{id: view.ID, host: view.Host, view: &view}, nil
	case !errors.Is(err, &schema.Error{Kind: schema.KindServiceUnavailable}) && !schema.IsID(arg),
		errors.Is(err, &schema.Error{Kind: schema.KindNotFound}), isUsage(err):
		return target{}, err
	}
	ref, findErr := e.findByVisibility(ctx, arg)
	if schema.IsID(arg) {
		e.say("warning: going on without the admin API: %s", err)
		return target{id: arg, host: ref.Host}, nil
	}
	if findErr != nil {
		return target{}, fmt.Errorf("%w; %w", err, findErr)
	}
	e.say("warning: the admin API does not answer; Temporal knows %s as %s", arg, ref.NodeID)
	return target{id: ref.NodeID, host: arg}, nil
}

// known resolves NODE by the admin API, for commands that go on with it.
func (e *env) known(ctx context.Context, arg string) (*adminAPI, target, error) {
	api, err := e.api()
	if err != nil {
		return nil, target{}, err
	}
	node, err := api.node(ctx, arg)
	if err != nil {
		return nil, target{}, err
	}
	return api, target{id: node.ID, host: node.Host, view: &node}, nil
}

// lookup asks the admin API for the node, within lookupBudget.
func (e *env) lookup(ctx context.Context, arg string) (wire.NodeView, error) {
	api, err := e.api()
	if err != nil {
		return wire.NodeView{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupBudget)
	defer cancel()
	return api.node(ctx, arg)
}

func (e *env) findByVisibility(ctx context.Context, name string) (lifecycle.NodeRef, error) {
	lc, err := e.lifecycle(ctx)
	if err != nil {
		return lifecycle.NodeRef{}, err
	}
	return lc.FindNode(ctx, name)
}

func isUsage(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

// completeNode offers host names for NODE.
func (e *env) completeNode(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	api, err := e.api()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionBudget)
	defer cancel()
	nodes, err := api.nodes(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, n := range nodes {
		if n.State != lifecycle.NodeRemoved {
			names = append(names, cobra.CompletionWithDesc(clean(n.Host), string(n.State)))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNodeFlag offers host names for --node.
func (e *env) completeNodeFlag(c *cobra.Command) {
	c.RegisterFlagCompletionFunc("node", func(c *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) { //nolint:errcheck // fails only for an unknown flag
		return e.completeNode(c, nil, text)
	})
}
