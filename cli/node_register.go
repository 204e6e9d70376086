package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeRegisterOptions struct {
	sku, region, mode, class string
	gpus                     uint
	labels                   []string
}

func newNodeRegister(e *env) *cobra.Command {
	var o nodeRegisterOptions
	c := e.command("register HOST", "Add a node to the inventory",
		`Adds a node to the inventory and prints its id alone on stdout, so that a script
can capture it. The SKU must be an active one of the catalog. Nothing changes on the
node, and no operation runs.`,
		`  gpuaas node register gpu-17 --sku h100 --region fra1 --gpus 8
  id=$(gpuaas node register "$(hostname)" --sku cpu-dev --region local)`,
		func(ctx context.Context, host string) error {
			const help = "gpuaas node register"
			switch {
			case host == "" || schema.IsID(host):
				return usagef(help, "%q is not a host name", host)
			case o.sku == "":
				return usagef(help, "missing --sku: the node's SKU in the catalog, for example h100, a100 or cpu-dev")
			case o.region == "":
				return usagef(help, "missing --region: the node's region code, for example fra1")
			}
			switch inventory.Class(o.class) {
			case "", inventory.ClassPersistent, inventory.ClassEphemeral, inventory.ClassSpot:
			default:
				return usagef(help, "--class %q: must be persistent, ephemeral or spot", o.class)
			}
			labels, removed, err := parseLabels(help, o.labels)
			if err != nil {
				return err
			}
			if len(removed) > 0 {
				return usagef(help, "--label %s-: a new node has no label to remove", removed[0])
			}
			api := e.api()
			node, err := decode[wire.NodeView](api.RegisterNode(ctx, nil, wire.RegisterNodeRequest{Host: host, SKU: o.sku, GPUsTotal: int(o.gpus),
				RegionCode: o.region, OnboardingMode: o.mode, LifecycleClass: inventory.Class(o.class), Labels: labels}))
			if err != nil {
				return err
			}
			if err := e.print(node, func(w io.Writer) { row(w, node.ID) }); err != nil {
				return err
			}
			e.message("registered %s; next: gpuaas node enroll %s", node.Host, node.Host)
			return nil
		})
	f := c.Flags()
	f.StringVar(&o.sku, "sku", "", "SKU of the catalog (required)")
	f.StringVar(&o.region, "region", "", "region code (required)")
	f.UintVar(&o.gpus, "gpus", 0, "number of GPUs (default: the SKU's)")
	f.StringArrayVar(&o.labels, "label", nil, "label KEY=VALUE to select the node by; repeatable")
	f.StringVar(&o.mode, "mode", "", "provider (default manual)")
	addChoices(c, &o.class, "class", "persistent, ephemeral or spot (default persistent)",
		string(inventory.ClassPersistent), string(inventory.ClassEphemeral), string(inventory.ClassSpot))
	return c
}
