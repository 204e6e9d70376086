package cli

import (
	"cmp"
	"context"
	"io"
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newNodeSet(e *env) *cobra.Command {
	var labels []string
	var gpus uint
	var change wire.NodeChange
	var c *cobra.Command
	c = e.command("set NODE", "Change the registration of a node",
		`Changes a node's labels and its number of GPUs in the inventory, and until it has enrolled
also its SKU and region. Without --gpus, a new SKU sets the number of GPUs to its own.
Nothing changes on the node itself. The change is recorded in the audit trail.

A new --workload-driver is part of the node's next bundle. For an enrolled node, run
gpuaas node reissue-enrollment and its line, or edit the node's env file. To state that a
node runs no workloads, set the driver none. --unset-workload-driver leaves the node without
a driver, as if it had been registered without one; on an enrolled node, also remove it
from the env file. A drain then parks.

A host name cannot be changed: remove the node, an enrolled one after gpuaas node retire,
and register the host.`,
		"  gpuaas node set gpu-17 --label rack=r7 --label old-\n  gpuaas node set gpu-17 --sku a100 --region fra1 --reason \"wrong rack\"",
		func(ctx context.Context, arg string) (err error) {
			if change.Labels, change.RemoveLabels, err = parseLabels(c.CommandPath(), labels); err != nil {
				return err
			}
			if c.Flags().Changed("gpus") {
				change.GPUsTotal = new(int(gpus))
			}
			if err = checkDriverFlags(c, change); err != nil {
				return err
			}
			if change.GPUsTotal == nil && change.SKU+change.RegionCode+change.WorkloadDriver == "" && !change.UnsetWorkloadDriver && len(labels) == 0 {
				return usagef(c.CommandPath(), "nothing to change: use --label, --gpus, --sku, --region, --workload-driver or --unset-workload-driver")
			}
			warnOfDriver(e, change.WorkloadDriver)
			before, err := decode[wire.NodeView](e.api().GetNode(ctx, arg, nil))
			if err != nil {
				return err
			}
			node, err := decode[wire.NodeView](e.api().SetNode(ctx, arg, nil, change))
			if err != nil {
				return err
			}
			if sameRegistration(before, node) {
				e.message("unchanged: %s already has these values", node.Host)
			}
			sayDriverOfAgent(e, change, node)
			return e.print(node, func(w io.Writer) {
				row(w, node.Host, node.SKU, text.Count(node.GPUsTotal, "GPU"), node.RegionCode, dash(labelText(node.Labels)), "driver="+cmp.Or(node.WorkloadDriver, "-"))
			}, node.Host)
		})
	c.Flags().StringArrayVar(&labels, "label", nil, "set a label (KEY=VALUE) or remove one (KEY-); repeatable")
	c.Flags().StringVar(&change.SKU, "sku", "", "SKU of the catalog")
	c.Flags().StringVar(&change.RegionCode, "region", "", "region code")
	c.Flags().UintVar(&gpus, "gpus", 0, "number of GPUs")
	c.Flags().StringVar(&change.WorkloadDriver, "workload-driver", "", "workload driver: "+driverNames()+"; several separated by commas")
	c.Flags().BoolVar(&change.UnsetWorkloadDriver, "unset-workload-driver", false, "leave the node without a workload driver; its drains park")
	c.Flags().StringVar(&change.Reason, "reason", "", "reason, kept in the audit trail")
	return c
}

// checkDriverFlags rejects a driver without a name, which an unset shell variable gives, and
// one together with its removal.
func checkDriverFlags(c *cobra.Command, change wire.NodeChange) error {
	switch given := c.Flags().Changed("workload-driver"); {
	case given && change.UnsetWorkloadDriver:
		return usagef(c.CommandPath(), "--workload-driver and --unset-workload-driver exclude each other")
	case given && change.WorkloadDriver == "":
		return usagef(c.CommandPath(), "--workload-driver is empty: give %s, or use --unset-workload-driver", driverNames())
	}
	return nil
}

// sayDriverOfAgent says how the agent of an enrolled node gets the driver that was set or
// unset. A bundle without a driver keeps the one in the env file.
func sayDriverOfAgent(e *env, change wire.NodeChange, node wire.NodeView) {
	switch {
	case !node.State.Enrolled() || node.Driver == node.WorkloadDriver:
	case change.UnsetWorkloadDriver:
		e.message("the node's agent still uses %s; remove GPUAAS_WORKLOAD_DRIVER from the env file on the node, then restart the agent", node.Driver)
	case change.WorkloadDriver != "":
		e.message("the node's agent still uses %s; for the new one: gpuaas node reissue-enrollment %s, or edit the env file on the node",
			cmp.Or(node.Driver, "no workload driver"), node.Host)
	}
}

// sameRegistration reports whether the properties that the command changes are the same.
func sameRegistration(a, b wire.NodeView) bool {
	return a.SKU == b.SKU && a.GPUsTotal == b.GPUsTotal && a.RegionCode == b.RegionCode && a.WorkloadDriver == b.WorkloadDriver && maps.Equal(a.Labels, b.Labels)
}

// parseLabels reads KEY=VALUE and KEY- words.
func parseLabels(help string, words []string) (set map[string]string, remove []string, err error) {
	for _, w := range words {
		key, value, isSet := strings.Cut(w, "=")
		removed, isRemoved := strings.CutSuffix(w, "-")
		switch {
		case isSet && key != "":
			if set == nil {
				set = map[string]string{}
			}
			set[key] = value
		case !isSet && isRemoved && removed != "":
			remove = append(remove, removed)
		default:
			return nil, nil, usagef(help, "--label %q: must be KEY=VALUE, or KEY- to remove it", w)
		}
	}
	return set, remove, nil
}
