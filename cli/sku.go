package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

func newSKU(e *env) *cobra.Command {
	return newGroup("sku", "Manage the SKU catalog",
		`Shows and changes the catalog of SKUs. A SKU says what a machine must have; each node is
registered with one, and its provision compares the machine with it.`,
		newSKUList(e), newSKUShow(e), newSKUAdd(e), newSKUDeactivate(e))
}

func newSKUList(e *env) *cobra.Command {
	var q adminclient.ListSKUsParams
	var active bool
	var c *cobra.Command
	c = e.command("list", "List the SKU catalog", "Lists the SKUs by name, with what a machine must have.",
		"  gpuaas sku list\n  gpuaas sku list --active -o name",
		func(ctx context.Context, _ string) error {
			if c.Flags().Changed("active") {
				q.Active = &active
			}
			skus, err := pages(0, func(size *int, token *string) ([]inventory.SKU, string, error) {
				q.Limit, q.PageToken = size, token
				list, err := decode[inventory.SKUList](e.api().ListSKUs(ctx, &q))
				return list.SKUs, list.NextPageToken, err
			})
			if err != nil {
				return err
			}
			return printList(e.console, listing[inventory.SKU]{
				object: inventory.SKUList{SKUs: skus}, rows: skus, empty: "no SKU matches; add one with: gpuaas sku add NAME",
				header: []string{"NAME", "STATUS", "GPU MODEL", "MAX GPUS", "MIN CPUS", "MIN MEMORY"},
				cells: func(s inventory.SKU) []string {
					return []string{s.Name, skuStatus(s), dash(s.GPUModel), strconv.Itoa(s.MaxGPUs), strconv.Itoa(s.MinCPUs), bytesOf(s.MinMemoryBytes)}
				},
				name: func(s inventory.SKU) string { return s.Name },
			})
		})
	c.Aliases = []string{"ls"}
	c.Flags().BoolVar(&active, "active", false, "only the SKUs that new nodes may have; =false for the others")
	return c
}

func skuStatus(s inventory.SKU) string {
	if s.Active {
		return "active"
	}
	return "inactive"
}

// skuCommand is a command that sends a request about a SKU and prints the SKU.
func skuCommand(e *env, use, short, long, example string, send func(ctx context.Context, name string) (*http.Response, error)) *cobra.Command {
	return e.command(use, short, long, example, func(ctx context.Context, name string) error {
		s, err := decode[inventory.SKU](send(ctx, name))
		if err != nil {
			return err
		}
		return e.print(s, func(w io.Writer) {
			fields(w, "SKU:", s.Name, "Status:", skuStatus(s), "GPU model:", dash(s.GPUModel), "Max GPUs:", strconv.Itoa(s.MaxGPUs),
				"Min CPUs:", strconv.Itoa(s.MinCPUs), "Min memory:", bytesOf(s.MinMemoryBytes), "Workload driver:", dash(s.WorkloadDriver))
		}, s.Name)
	})
}

func newSKUShow(e *env) *cobra.Command {
	return skuCommand(e, "show SKU", "Show a SKU", "Shows what a machine with the SKU must have.", "  gpuaas sku show h100",
		func(ctx context.Context, name string) (*http.Response, error) { return e.api().GetSKU(ctx, name, nil) })
}

func newSKUAdd(e *env) *cobra.Command {
	var n inventory.NewSKU
	c := skuCommand(e, "add NAME", "Add a SKU to the catalog",
		`Adds a SKU, with which nodes can be registered at once. A SKU cannot be changed: add one
with a new name. To activate a SKU that was deactivated, add it again with the same
properties. The command requires the role admin.`,
		`  gpuaas sku add b200 --gpu-model B200 --max-gpus 8 --min-cpus 64 --min-memory 1TiB
  gpuaas sku add cpu-small --min-cpus 8 --min-memory 16GiB --reason TCK-12`,
		func(ctx context.Context, name string) (*http.Response, error) {
			n.Name = name
			return e.api().AddSKU(ctx, nil, n)
		})
	f := c.Flags()
	f.StringVar(&n.GPUModel, "gpu-model", "", "text that the model of each GPU must contain (default: any model)")
	f.IntVar(&n.MaxGPUs, "max-gpus", 0, "largest number of GPUs, and the default of a registration")
	f.IntVar(&n.MinCPUs, "min-cpus", 1, "least number of CPUs")
	f.Func("min-memory", "least memory `SIZE`, for example 512MiB, 256GiB or 1TiB (default: any)", func(text string) (err error) {
		n.MinMemoryBytes, err = parseSize(text)
		return err
	})
	f.StringVar(&n.WorkloadDriver, "workload-driver", "", "default workload driver of a registration: "+driverNames()+"; several separated by commas (default: no default)")
	f.StringVar(&n.Reason, "reason", "", "reason, kept in the audit trail")
	return c
}

// parseSize parses a size in binary units. 22 bits of the largest unit fit an int64.
func parseSize(text string) (int64, error) {
	for i, unit := range []string{"MiB", "GiB", "TiB"} {
		number, ok := strings.CutSuffix(text, unit)
		if n, err := strconv.ParseUint(number, 10, 22); ok && err == nil {
			return int64(n) << (20 + 10*i), nil
		}
	}
	return 0, errors.New("must be a size with a unit, for example 512MiB, 256GiB or 1TiB")
}

func newSKUDeactivate(e *env) *cobra.Command {
	var d inventory.SKUDeactivation
	c := skuCommand(e, "deactivate SKU", "Stop the registration of nodes with a SKU",
		`Makes the catalog refuse new nodes with the SKU. Nodes that have it keep it, and all
commands on them work as before. gpuaas sku add activates the SKU again. The command
requires the role admin.`,
		"  gpuaas sku deactivate a100 --reason \"end of life\"",
		func(ctx context.Context, name string) (*http.Response, error) {
			return e.api().DeactivateSKU(ctx, name, nil, d)
		})
	c.Flags().StringVar(&d.Reason, "reason", "", "reason, kept in the audit trail")
	return c
}
