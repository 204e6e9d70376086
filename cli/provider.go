package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newProvider(e *env) *cobra.Command {
	return newGroup("provider", "Show the providers of machines",
		`Shows the providers that the workers have, and what each of them offers. A node is
registered with one of them (gpuaas node register --mode), and its provision gets the
machine from that provider.`,
		newProviderList(e), newProviderShow(e))
}

func newProviderList(e *env) *cobra.Command {
	c := e.command("list", "List the providers",
		`Lists the providers by name: whether each can be used now and why not, whether it creates
machines, and the regions, types and images that it offers. Each worker stores its
providers when it starts and every 5 minutes.`,
		"  gpuaas provider list\n  gpuaas provider list -o name",
		func(ctx context.Context, _ string) error {
			all, err := listProviders(ctx, e.api())
			if err != nil {
				return err
			}
			return printList(e.console, listing[machine.Provider]{
				object: machine.Providers{Providers: all}, rows: all, empty: "there are no providers: no worker has started yet",
				header: []string{"NAME", "STATUS", "CREATES", "REGIONS", "TYPES", "IMAGES", "UPDATED"},
				cells: func(p machine.Provider) []string {
					status := providerStatus(p)
					if p.Disabled != "" {
						status += " (" + p.Disabled + ")"
					}
					return []string{p.Name, status, yesNo(p.Creates), few(p.Regions), few(typeIDs(p)), few(p.Images),
						lifecycle.Span(e.clock.now().Sub(p.UpdatedAt)) + " ago"}
				},
				name: func(p machine.Provider) string { return p.Name },
			})
		})
	c.Aliases = []string{"ls"}
	return c
}

func newProviderShow(e *env) *cobra.Command {
	c := e.command("show PROVIDER", "Show a provider and what it offers",
		`Shows a provider: whether it can be used now and why not, its regions, images and types of
machine, and the time limits of its creations, boots and deletions. These are the values of
--provider-region, --image and --type of gpuaas node provision.`,
		"  gpuaas provider show libvirt\n  gpuaas provider show libvirt -o json | jq .types",
		func(ctx context.Context, name string) error {
			p, err := findProvider(ctx, e.api(), name)
			if err != nil {
				return err
			}
			return e.print(p, func(w io.Writer) { writeProvider(e, w, p) }, p.Name)
		})
	c.ValidArgsFunction = completeProvider(e)
	return c
}

// listProviders returns the providers in order of name.
func listProviders(ctx context.Context, api *adminclient.Client) ([]machine.Provider, error) {
	list, err := decode[machine.Providers](api.ListProviders(ctx, nil))
	return list.Providers, err
}

// findProvider returns the provider with a name. KindNotFound if there is none.
func findProvider(ctx context.Context, api *adminclient.Client, name string) (machine.Provider, error) {
	all, err := listProviders(ctx, api)
	i := slices.IndexFunc(all, func(p machine.Provider) bool { return p.Name == name })
	switch {
	case err != nil:
		return machine.Provider{}, err
	case i < 0:
		return machine.Provider{}, schema.NewError(schema.KindNotFound, "no provider %q", name).WithNext("gpuaas provider list")
	}
	return all[i], nil
}

// providerOf describes the provider of a node. A provider that no worker has stored has only its
// name, as in the claim of an operation.
func providerOf(ctx context.Context, api *adminclient.Client, n wire.NodeView) (machine.Info, error) {
	all, err := listProviders(ctx, api)
	for _, p := range all {
		if p.Name == n.OnboardingMode {
			return p.Info, nil
		}
	}
	return machine.Info{Name: n.OnboardingMode}, err
}

// completeProvider offers the names of the providers.
func completeProvider(e *env) cobra.CompletionFunc {
	return e.complete(func(ctx context.Context, api *adminclient.Client, _ string) (names []cobra.Completion, err error) {
		all, err := listProviders(ctx, api)
		for _, p := range all {
			names = append(names, cobra.CompletionWithDesc(clean(p.Name), providerStatus(p)))
		}
		return names, err
	})
}

// completeMode offers the names of the providers for --mode.
func completeMode(e *env) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeProvider(e)(c, nil, text)
	}
}

// completeOffered offers what one provider has: that of --mode, or that of the node that the
// command names. Without either, it offers what any provider has.
func completeOffered(e *env, offered func(machine.Provider) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return e.complete(func(ctx context.Context, api *adminclient.Client, _ string) (names []cobra.Completion, err error) {
			of := ""
			if mode := c.Flag("mode"); mode != nil {
				of = mode.Value.String()
			} else if len(args) == 1 {
				n, err := decode[wire.NodeView](api.GetNode(ctx, args[0], nil))
				if err != nil {
					return nil, err
				}
				of = n.OnboardingMode
			}
			all, err := listProviders(ctx, api)
			for _, p := range all {
				if of != "" && of != p.Name {
					continue
				}
				for _, name := range offered(p) {
					names = append(names, clean(name))
				}
			}
			slices.Sort(names)
			return slices.Compact(names), err
		})(c, nil, text)
	}
}

func writeProvider(e *env, w io.Writer, p machine.Provider) {
	creates := "machines"
	if !p.Creates {
		creates = "no machines: it adopts hosts that run"
	}
	fields(w, "Provider:", p.Name, "Status:", providerStatus(p), "  Because:", p.Disabled, "Creates:", creates,
		"Regions:", dash(strings.Join(p.Regions, ", ")), "Images:", dash(strings.Join(p.Images, ", ")),
		"Defaults:", defaultsOf(p.Defaults), "Spot:", yesNo(p.Spot),
		"Limits:", limitsOf(p.Limits), "Updated:", e.stamp(p.UpdatedAt))
	if len(p.Types) == 0 {
		row(w, "Types:", "-")
		return
	}
	fmt.Fprintln(w)
	row(w, "TYPE", "CPUS", "MEMORY", "GPUS", "GPU MODEL", "REGIONS")
	for _, t := range p.Types {
		regions := "all"
		if len(t.Regions) > 0 {
			regions = strings.Join(t.Regions, ", ")
		}
		row(w, t.ID, strconv.Itoa(t.CPUs), bytesOf(int64(t.MemoryMiB)<<20), strconv.Itoa(t.GPUs), dash(t.GPUModel), regions)
	}
}

func providerStatus(p machine.Provider) string {
	if p.Disabled != "" {
		return "disabled"
	}
	return "enabled"
}

// limitsOf renders the limits that replace those of the phases.
func limitsOf(l machine.Limits) string {
	var words []string
	for _, limit := range []struct {
		name string
		time time.Duration
	}{{"create", l.Create}, {"boot", l.Boot}, {"delete", l.Delete}} {
		if limit.time > 0 {
			words = append(words, limit.name+" "+lifecycle.Span(limit.time))
		}
	}
	if len(words) == 0 {
		return "those of the phases"
	}
	return strings.Join(words, ", ")
}

// defaultsOf renders what a creation without a choice gets, "" if the provider names nothing.
func defaultsOf(o machine.Options) string {
	var words []string
	for _, d := range []struct{ what, value string }{{"region", o.Region}, {"type", o.Type}, {"image", o.Image}} {
		if d.value != "" {
			words = append(words, d.what+" "+d.value)
		}
	}
	return strings.Join(words, ", ")
}

func typeIDs(p machine.Provider) (ids []string) {
	for _, t := range p.Types {
		ids = append(ids, t.ID)
	}
	return ids
}

// few renders at most three words and the number of the others, or "-" for none.
func few(words []string) string {
	const most = 3
	text := strings.Join(words[:min(most, len(words))], ", ")
	if len(words) > most {
		text += fmt.Sprintf(", … (%d)", len(words))
	}
	return dash(text)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
