package cli

import (
	"context"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeList(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the nodes",
		Long:    "Lists every node with its state, its last heartbeat and the operation that holds it.",
		Example: "  gpuaas node list\n  gpuaas node list -o json | jq -r '.nodes[] | select(.state == \"active\") | .host'",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runNodeList(c.Context(), e) },
	}
}

func runNodeList(ctx context.Context, e *env) error {
	api, err := e.api()
	if err != nil {
		return err
	}
	nodes, err := api.nodes(ctx)
	if err != nil {
		return err
	}
	if nodes == nil {
		nodes = []wire.NodeView{}
	}
	if len(nodes) == 0 {
		e.say("there are no nodes; add one with: gpuaas node register HOST --sku SKU --region R")
		if e.flags.output == formatTable {
			return nil
		}
	}
	return e.print(wire.NodeList{Nodes: nodes}, func(w io.Writer) { e.writeNodes(w, nodes) })
}

func (e *env) writeNodes(w io.Writer, nodes []wire.NodeView) {
	now := e.clock.now()
	row(w, "HOST", "STATE", "SINCE", "SKU", "GPUS", "REGION", "HEARTBEAT", "OPERATION", "ID")
	for _, n := range nodes {
		heartbeat, operation := "-", "-"
		if n.LastHeartbeatAt != nil {
			heartbeat = span(now.Sub(*n.LastHeartbeatAt)) + " ago"
		}
		if o := n.Operation; o != nil {
			operation = string(o.Action) + " " + string(o.Status)
		}
		row(w, n.Host, nodeState(n), span(now.Sub(n.StateSince)), n.SKU, strconv.Itoa(n.GPUsTotal), n.RegionCode, heartbeat, operation, n.ID)
	}
}

// nodeState is a node's state with what qualifies it.
func nodeState(n wire.NodeView) string {
	if n.Cordoned {
		return string(n.State) + " (cordoned)"
	}
	return string(n.State)
}
