package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// selectorHelp documents -l.
const selectorHelp = `-l selects by labels and by the properties region, sku, state, provider, class and
host, in kubectl's grammar: k=v, k!=v, k in (a,b), k notin (a,b), k, !k.`

func newNodeList(e *env) *cobra.Command {
	var q adminclient.ListNodesParams
	var removed, watch bool
	var limit uint
	c := e.command("list", "List the nodes",
		`Lists the nodes by host name, with state, last heartbeat and the operation that holds
each node. Removed nodes are shown only with --removed or --state removed.

`+selectorHelp,
		"  gpuaas node list -l rack=r7,tier!=test\n  gpuaas node list --state active,offline --region fra1 -o wide\n  gpuaas node list -o name | xargs -n1 gpuaas node show",
		func(ctx context.Context, _ string) error {
			ctl := e.apiControl()
			if removed {
				q.Removed = &removed
			}
			return e.refresh(ctx, ctl, watch, func() error {
				nodes, err := listNodes(ctx, ctl.Client, q, limit)
				if err != nil {
					return err
				}
				e.clearScreen(watch)
				return e.printNodes(nodes)
			})
		})
	c.Aliases = []string{"ls"}
	f := c.Flags()
	f.VarP(textFilter{&q.Selector}, "selector", "l", "only nodes that match")
	f.Var(textFilter{&q.Host}, "host", "only host names that match; * and ? are wildcards")
	f.Var(listFilter{&q.State}, "state", "only these states")
	f.Var(listFilter{&q.Sku}, "sku", "only these SKUs")
	f.Var(listFilter{&q.Region}, "region", "only these regions")
	f.Var(listFilter{&q.Provider}, "provider", "only these providers")
	f.BoolVar(&removed, "removed", false, "include removed nodes")
	f.BoolVarP(&watch, "watch", "w", false, "refresh at each change until interrupted")
	f.UintVar(&limit, "limit", 0, "list at most N (default: all)")
	return c
}

func (e *console) printNodes(nodes []wire.NodeView) error {
	now := e.clock.now()
	return printList(e, listing[wire.NodeView]{
		object: wire.NodeList{Nodes: nodes}, rows: nodes,
		empty:  "no node matches; add one with: gpuaas node register HOST --sku SKU --region R",
		header: []string{"HOST", "STATE", "SINCE", "SKU", "GPUS", "REGION", "HEARTBEAT", "OPERATION", "ID", "AGENT", "LABELS"}, wide: 2,
		cells: func(n wire.NodeView) []string {
			heartbeat, operation := "-", "-"
			if n.LastHeartbeatAt != nil {
				heartbeat = span(now.Sub(*n.LastHeartbeatAt)) + " ago"
			}
			if o := n.Operation; o != nil {
				operation = string(o.Action) + " " + string(o.Status)
			}
			return []string{n.Host, nodeState(n), span(now.Sub(n.StateSince)), n.SKU, strconv.Itoa(n.GPUsTotal), n.RegionCode,
				heartbeat, operation, n.ID, dash(n.AgentVersion), dash(labelText(n.Labels))}
		},
		name: func(n wire.NodeView) string { return n.Host },
	})
}

// nodeState is a node's state with its cordon.
func nodeState(n wire.NodeView) string {
	if n.Cordoned {
		return string(n.State) + " (cordoned)"
	}
	return string(n.State)
}

// labelText is k=v,k=v in order of the keys.
func labelText(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return strings.Join(words, ",")
}
