package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/cli/adminclient"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeListOptions struct {
	selector, host               string
	state, sku, region, provider []string
	removed, watch               bool
	limit                        int
}

func newNodeList(e *env) *cobra.Command {
	var o nodeListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the nodes",
		Long: `Lists the nodes by host name, with state, last heartbeat and the operation that holds
each. Removed nodes are left out unless --removed or --state removed asks for them.

-l selects by labels and by the properties region, sku, state, provider, class and
host, in kubectl's grammar: k=v, k!=v, k in (a,b), k notin (a,b), k, !k.`,
		Example: "  gpuaas node list -l rack=r7,tier!=test\n  gpuaas node list --state active,offline --region fra1 -o wide\n  gpuaas node list -o name | xargs -n1 gpuaas node show",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runNodeList(c.Context(), e, o) },
	}
	f := c.Flags()
	f.StringVarP(&o.selector, "selector", "l", "", "only nodes that match")
	f.StringVar(&o.host, "host", "", "only host names that match; * and ? are wildcards")
	f.StringSliceVar(&o.state, "state", nil, "only these states")
	f.StringSliceVar(&o.sku, "sku", nil, "only these SKUs")
	f.StringSliceVar(&o.region, "region", nil, "only these regions")
	f.StringSliceVar(&o.provider, "provider", nil, "only these providers")
	f.BoolVar(&o.removed, "removed", false, "include removed nodes")
	f.BoolVarP(&o.watch, "watch", "w", false, "refresh at each change until interrupted")
	f.IntVar(&o.limit, "limit", 0, "list at most N (default: all)")
	return c
}

// query is the request of the options.
func (o nodeListOptions) query() adminclient.ListNodesParams {
	q := adminclient.ListNodesParams{Selector: given(o.selector), Host: given(o.host), State: several(o.state), Sku: several(o.sku),
		Region: several(o.region), Provider: several(o.provider)}
	if o.removed {
		q.Removed = &o.removed
	}
	return q
}

func runNodeList(ctx context.Context, e *env, o nodeListOptions) error {
	if o.limit < 0 {
		return usagef("gpuaas node list", "--limit %d: want 0 or more", o.limit)
	}
	api, err := e.api()
	if err != nil {
		return err
	}
	var refresh *watcher
	for {
		nodes, err := api.nodes(ctx, o.query(), o.limit)
		if err != nil {
			return err
		}
		if o.watch && e.tty.out {
			fmt.Fprint(e.stdout, "\x1b[H\x1b[2J")
		}
		if err := e.printNodes(nodes); err != nil || !o.watch {
			return err
		}
		if refresh == nil {
			refresh = &watcher{e.clock, api.changes(ctx, "")}
		}
		if !refresh.wait(ctx) {
			return nil
		}
	}
}

func (e *printer) printNodes(nodes []wire.NodeView) error {
	if len(nodes) == 0 {
		e.say("no node matches; add one with: gpuaas node register HOST --sku SKU --region R")
		if !e.machine() {
			return nil
		}
	}
	return e.print(nodeRows(nodes), func(w io.Writer) { e.writeNodes(w, nodes) })
}

// nodeRows are the nodes as lists print them.
type nodeRows []wire.NodeView

// MarshalJSON prints the list in the form of the admin API.
func (n nodeRows) MarshalJSON() ([]byte, error) { return json.Marshal(wire.NodeList{Nodes: n}) }

func (n nodeRows) names() []string {
	names := make([]string, len(n))
	for i, v := range n {
		names[i] = v.Host
	}
	return names
}

func (e *printer) writeNodes(w io.Writer, nodes []wire.NodeView) {
	now := e.clock.now()
	wide := e.output == formatWide
	header := []string{"HOST", "STATE", "SINCE", "SKU", "GPUS", "REGION", "HEARTBEAT", "OPERATION", "ID"}
	if wide {
		header = append(header, "AGENT", "LABELS")
	}
	row(w, header...)
	for _, n := range nodes {
		heartbeat, operation := "-", "-"
		if n.LastHeartbeatAt != nil {
			heartbeat = span(now.Sub(*n.LastHeartbeatAt)) + " ago"
		}
		if o := n.Operation; o != nil {
			operation = string(o.Action) + " " + string(o.Status)
		}
		cells := []string{n.Host, nodeState(n), span(now.Sub(n.StateSince)), n.SKU, strconv.Itoa(n.GPUsTotal), n.RegionCode, heartbeat, operation, n.ID}
		if wide {
			cells = append(cells, dash(n.AgentVersion), dash(labelText(n.Labels)))
		}
		row(w, cells...)
	}
}

// nodeState is a node's state with what qualifies it.
func nodeState(n wire.NodeView) string {
	if n.Cordoned {
		return string(n.State) + " (cordoned)"
	}
	return string(n.State)
}
