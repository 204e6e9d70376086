package cli

import (
	"cmp"
	"fmt"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// differences describes what a node and its live instance have in place of what the flags name.
// A flag that is not given names nothing.
func differences(o nodeCreateOptions, n wire.NodeView) (out []string) {
	q := o.register
	for _, f := range []struct{ what, is, named string }{
		{"provider", n.OnboardingMode, q.OnboardingMode},
		{"SKU", n.SKU, q.SKU},
		{"region", n.RegionCode, q.RegionCode},
		{"class", string(n.LifecycleClass), string(q.LifecycleClass)},
		{"workload driver", n.WorkloadDriver, q.WorkloadDriver},
	} {
		if f.named != "" && f.named != f.is {
			out = append(out, instead(f.what, cmp.Or(f.is, "none"), f.named))
		}
	}
	if n.Instance != nil && n.Instance.State.Live() {
		out = append(out, machineDifferences(n.Instance.Options, o.machine)...)
	}
	return out
}

// machineDifferences describes what does not allow the named options in a machine with others.
func machineDifferences(is, named machine.Options) (out []string) {
	chosen := func(s string) string { return cmp.Or(s, "not chosen") }
	for _, f := range []struct {
		named machine.Options
		words string
	}{
		{machine.Options{Region: named.Region}, instead("provider region", chosen(is.Region), named.Region)},
		{machine.Options{Type: named.Type}, instead("type", chosen(is.Type), named.Type)},
		{machine.Options{Image: named.Image}, instead("image", chosen(is.Image), named.Image)},
		{machine.Options{Spot: named.Spot}, "a machine that is not spot"},
		{machine.Options{SSHKeys: named.SSHKeys}, "other SSH keys"},
	} {
		if !is.Allows(f.named) {
			out = append(out, f.words)
		}
	}
	return out
}

func instead(what, is, named string) string { return fmt.Sprintf("%s %s, not %s", what, is, named) }
