package cli

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// driverNames are the workload drivers of every agent, for help texts.
func driverNames() string { return text.Or(inventory.Drivers()) }

// warnOfDriver warns of a driver that only agents of your own build have, or of a misspelled one.
func warnOfDriver(e *env, driver string) {
	for name := range strings.SplitSeq(driver, ",") {
		if driver != "" && !slices.Contains(inventory.Drivers(), name) {
			e.message("warning: the workload driver %q is not one of %s: the agent refuses to start unless its build has it", name, driverNames())
		}
	}
}

// registeredNext is the command after the registration of a node. The machine of a provider that
// creates machines does not exist yet. If the providers cannot be read, the command shows which
// of the two the node's provider is.
func registeredNext(ctx context.Context, e *env, n wire.NodeView) string {
	switch provider, err := providerOf(ctx, e.api(), n); {
	case err != nil:
		return "gpuaas provider show " + n.OnboardingMode
	case provider.Creates:
		return "gpuaas node provision " + n.Host
	}
	return "gpuaas node bootstrap-script " + n.Host
}

func newNodeRegister(e *env) *cobra.Command {
	var r wire.RegisterNodeRequest
	var words []string
	c := e.command("register HOST", "Add a node to the inventory",
		`Adds a node to the inventory and prints its id alone on stdout, so that a script
can capture it. The SKU must be an active one of the catalog (gpuaas sku list). Nothing
changes on the node, and no operation runs.

--workload-driver is part of the node's bundle. A drain of a node without one parks,
because the agent cannot list what runs there. Use none for a node that runs no
workloads.

--mode names the provider of the machine (gpuaas provider list). With a provider that
creates machines, provision the node next; its agent then enrolls.`,
		`  gpuaas node register gpu-17 --sku h100 --region fra1 --gpus 8
  id=$(gpuaas node register "$(hostname)" --sku cpu-dev --region local)`,
		func(ctx context.Context, host string) error {
			warnOfDriver(e, r.WorkloadDriver)
			const help = "gpuaas node register"
			var missing []string
			if r.SKU == "" {
				missing = append(missing, "--sku")
			}
			if r.RegionCode == "" {
				missing = append(missing, "--region")
			}
			if len(missing) > 0 {
				return usagef(help, "missing %s", strings.Join(missing, ", "))
			}
			labels, removed, err := parseLabels(help, words)
			if err != nil {
				return err
			}
			if len(removed) > 0 {
				return usagef(help, "--label %s-: a new node has no label to remove", removed[0])
			}
			r.Host, r.Labels = host, labels
			node, err := decode[wire.NodeView](e.api().RegisterNode(ctx, nil, r))
			if err != nil {
				return err
			}
			if err := e.print(node, func(w io.Writer) { row(w, node.ID) }, node.Host); err != nil {
				return err
			}
			e.message("registered %s; next: %s", node.Host, registeredNext(ctx, e, node))
			return nil
		})
	f := c.Flags()
	f.StringVar(&r.SKU, "sku", "", "SKU of the catalog (required)")
	f.StringVar(&r.RegionCode, "region", "", "region code (required)")
	f.IntVar(&r.GPUsTotal, "gpus", 0, "number of GPUs (default: the SKU's)")
	f.StringArrayVar(&words, "label", nil, "label KEY=VALUE to select the node by; repeatable")
	f.StringVar(&r.OnboardingMode, "mode", "", "provider that the machine comes from, one of gpuaas provider list (default manual)")
	completes(c, "mode", completeMode(e))
	f.BoolVar(&r.Probe, "probe", false, "end the enrollment with a probe of the node's health")
	f.StringVar(&r.WorkloadDriver, "workload-driver", "", "how the agent finds and stops workloads: "+driverNames()+"; several separated by commas (default: the SKU's)")
	addChoices(c, &r.LifecycleClass, "class", "lifecycle `CLASS`, which cannot be changed later (default persistent)", inventory.ClassPersistent, inventory.ClassEphemeral, inventory.ClassSpot)
	return c
}
