package cli

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema/wire"
)

type nodeSetOptions struct {
	labels []string
	gpus   int
	reason string
}

func newNodeSet(e *env) *cobra.Command {
	var o nodeSetOptions
	c := &cobra.Command{
		Use: "set NODE", Short: "Change what was registered of a node",
		Long:    "Changes a node's labels and its number of GPUs. The change is audited.",
		Example: "  gpuaas node set gpu-17 --label rack=r7 --label old-\n  gpuaas node set gpu-17 --gpus 8 --reason \"counted wrong\"",
		Args:    exactArgs("NODE"), ValidArgsFunction: e.completeNode,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		var change wire.NodeChange
		if c.Flags().Changed("gpus") {
			change.GPUsTotal = &o.gpus
		}
		return runNodeSet(c.Context(), e, args[0], change, o)
	}
	c.Flags().StringArrayVar(&o.labels, "label", nil, "set a label (KEY=VALUE) or remove one (KEY-); repeatable")
	c.Flags().IntVar(&o.gpus, "gpus", 0, "number of GPUs")
	c.Flags().StringVar(&o.reason, "reason", "", "reason, kept in the audit trail")
	return c
}

func runNodeSet(ctx context.Context, e *env, arg string, change wire.NodeChange, o nodeSetOptions) error {
	const help = "gpuaas node set"
	var err error
	if change.Labels, change.RemoveLabels, err = parseLabels(help, o.labels); err != nil {
		return err
	}
	if change.GPUsTotal == nil && len(o.labels) == 0 {
		return usagef(help, "nothing to change: give --label or --gpus")
	}
	change.Reason = o.reason
	api, t, err := e.known(ctx, arg)
	if err != nil {
		return err
	}
	node, err := api.setNode(ctx, t.id, change)
	if err != nil {
		return err
	}
	return e.print(node, func(w io.Writer) {
		row(w, node.Host, node.SKU, count(node.GPUsTotal, "GPU"), dash(labelText(node.Labels)))
	})
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
			return nil, nil, usagef(help, "--label %q: want KEY=VALUE, or KEY- to remove it", w)
		}
	}
	return set, remove, nil
}

// labelText is k=v,k=v in order of the keys.
func labelText(labels map[string]string) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, k+"="+labels[k])
	}
	return strings.Join(words, ",")
}
