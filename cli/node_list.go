package cli

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

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
				nodes, err := listNodes[nodeRow](ctx, ctl.Client, q, limit)
				if err != nil {
					return err
				}
				e.clearScreen(watch)
				return e.printNodes(nodes, emptyNodes(q))
			})
		})
	c.Aliases = []string{"ls"}
	addSelector(c, &q.Selector)
	f := c.Flags()
	f.Func("host", "only host names that match `PATTERN`; * and ? are wildcards", optional(&q.Host))
	addFilter(c, &q.State, "state", "only these `STATES`", lifecycle.NodeStates()...)
	addFilter[string](c, &q.Sku, "sku", "only these `SKUS`")
	addFilter[string](c, &q.Region, "region", "only these `REGIONS`")
	addFilter[string](c, &q.Provider, "provider", "only these `PROVIDERS`")
	f.BoolVar(&removed, "removed", false, "include removed nodes")
	f.BoolVarP(&watch, "watch", "w", false, "refresh at each change until interrupted")
	f.UintVar(&limit, "limit", 0, "list at most N (default: all)")
	return c
}

// nodeRow is a node of a list. Its JSON is the text that the API sent, which has only
// the fields of a summary.
type nodeRow struct {
	wire.NodeView

	sent json.RawMessage
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *nodeRow) UnmarshalJSON(text []byte) error {
	n.sent = slices.Clone(text)
	return json.Unmarshal(text, &n.NodeView)
}

// MarshalJSON implements json.Marshaler.
func (n nodeRow) MarshalJSON() ([]byte, error) { return n.sent, nil }

// emptyNodes is the message of a list without a node.
func emptyNodes(q adminclient.ListNodesParams) string {
	q.Removed = nil
	if q != (adminclient.ListNodesParams{}) {
		return "no node matches the flags; all nodes: gpuaas node list"
	}
	return "there are no nodes; add one with: gpuaas node register HOST --sku SKU --region R"
}

func (e *console) printNodes(nodes []nodeRow, empty string) error {
	now := e.clock.now()
	return printList(e, listing[nodeRow]{
		object: nodePage[nodeRow]{Nodes: nodes}, rows: nodes,
		empty:  empty,
		header: []string{"HOST", "STATE", "SINCE", "SKU", "GPUS", "REGION", "HEARTBEAT", "OPERATION", "ID", "AGENT", "LABELS"}, wide: 2,
		cells: func(n nodeRow) []string {
			heartbeat, operation := "-", "-"
			if n.LastHeartbeatAt != nil {
				heartbeat = lifecycle.Span(now.Sub(*n.LastHeartbeatAt)) + " ago"
			}
			if o := n.Operation; o != nil {
				operation = string(o.Action) + " " + string(o.Status)
			}
			return []string{n.Host, nodeState(n.NodeView), lifecycle.Span(now.Sub(n.StateSince)), n.SKU, strconv.Itoa(n.GPUsTotal), n.RegionCode,
				heartbeat, operation, n.ID, dash(n.AgentVersion), dash(labelText(n.Labels))}
		},
		name: func(n nodeRow) string { return n.Host },
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
