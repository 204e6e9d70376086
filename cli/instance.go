package cli

import (
	"context"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/instance"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func newInstance(e *env) *cobra.Command {
	return newGroup("instance", "Show the instances of nodes",
		`Shows instances. An instance is the time during which one machine serves as a node: a
provision begins it. The termination or the removal of the node, or the cancellation of the
provision, ends it.`,
		newInstanceList(e), newInstanceShow(e))
}

func newInstanceList(e *env) *cobra.Command {
	var q adminclient.ListInstancesParams
	var limit uint
	c := e.command("list", "List the instances",
		`Lists the instances, newest first: those that ended as well as the live ones, also of nodes
that were removed.`,
		"  gpuaas instance list --node gpu-17\n  gpuaas instance list --state pending,provisioning --provider libvirt -o wide",
		func(ctx context.Context, _ string) error {
			all, err := listInstances(ctx, e.api(), q, limit)
			if err != nil {
				return err
			}
			now := e.clock.now()
			return printList(e.console, listing[instance.View]{
				object: instance.List{Instances: all}, rows: all, empty: "no instance matches",
				header: []string{"NODE", "STATE", "SINCE", "PROVIDER", "REGION", "TYPE", "STARTED", "OPERATION", "ID", "EXTERNAL ID", "IMAGE", "SPOT", "ENDED"}, wide: 4,
				cells: func(v instance.View) []string {
					operation, ended := "-", "-"
					if o := v.Operation; o != nil {
						operation = string(o.Action) + " " + string(o.Status)
					}
					if v.EndedAt != nil {
						ended = lifecycle.Span(now.Sub(*v.EndedAt)) + " ago"
					}
					return []string{v.Host, string(v.State), lifecycle.Span(now.Sub(v.StateSince)), v.Provider, dash(v.Region), dash(v.Type),
						lifecycle.Span(now.Sub(v.StartedAt)) + " ago", operation, v.InstanceID, dash(v.ExternalID), dash(v.Image), yesNo(v.Spot), ended}
				},
				name: func(v instance.View) string { return v.InstanceID },
			})
		})
	c.Aliases = []string{"ls"}
	e.addNode(c, &q.Node, "only the instances of `NODE`")
	addFilter(c, &q.State, "state", "only these `STATES`", instance.States()...)
	addFilter[string](c, &q.Provider, "provider", "only these `PROVIDERS`")
	c.Flags().UintVar(&limit, "limit", wire.DefaultPage, "list at most N; 0 for all")
	return c
}

// listInstances returns instances, newest first.
func listInstances(ctx context.Context, api *adminclient.Client, q adminclient.ListInstancesParams, limit uint) ([]instance.View, error) {
	return pages(limit, func(size *int, token *string) ([]instance.View, string, error) {
		q.Limit, q.PageToken = size, token
		list, err := decode[instance.List](api.ListInstances(ctx, &q))
		return list.Instances, list.NextPageToken, err
	})
}

func newInstanceShow(e *env) *cobra.Command {
	c := e.command("show INSTANCE", "Show an instance",
		`Shows an instance: its node, state and machine, when it started and ended, the versions and
digests that its agent reported last, and the open operation of its node. INSTANCE is the ID
of an instance, live or ended.`,
		"  gpuaas instance show 5f0c9f5e-7d1b-7c43-9d25-1f0f3ad1c2aa\n  gpuaas instance show 5f0c9f5e-7d1b-7c43-9d25-1f0f3ad1c2aa -o json | jq .external_id",
		func(ctx context.Context, id string) error {
			v, err := decode[instance.View](e.api().GetInstance(ctx, id, nil))
			if err != nil {
				return err
			}
			return e.print(v, func(w io.Writer) {
				fields(w, "Instance:", v.InstanceID, "Node:", v.Host, "  ID:", v.NodeID, "Provider:", v.Provider, "External ID:", dash(v.ExternalID), "State:", string(v.State))
				writeMachine(e.console, w, "", v)
				fields(w, "Reported:", e.stampIf(v.ArtifactsAt))
				for _, name := range slices.Sorted(maps.Keys(v.Artifacts)) {
					row(w, "  "+name, reported(v.Artifacts[name]))
				}
				if o := v.Operation; o != nil {
					e.writeHolder(w, *o, &o.StartedAt)
				}
			}, v.InstanceID)
		})
	c.ValidArgsFunction = e.complete(func(ctx context.Context, api *adminclient.Client, _ string) (ids []cobra.Completion, err error) {
		all, err := listInstances(ctx, api, adminclient.ListInstancesParams{}, maxCompletions)
		for _, v := range all {
			ids = append(ids, cobra.CompletionWithDesc(v.InstanceID, clean(v.Host+", "+string(v.State))))
		}
		return ids, err
	})
	return c
}

// writeMachine shows the machine of an instance and the times of the instance, each label after
// the indent.
func writeMachine(e *console, w io.Writer, indent string, v instance.View) {
	keys, spot, since, started := "", "", "", ""
	if n := len(v.SSHKeys); n > 0 {
		keys = text.Count(n, "key")
	}
	if v.Spot {
		spot = yesNo(v.Spot)
	}
	if !v.StateSince.IsZero() {
		since = e.stamp(v.StateSince)
	}
	if !v.StartedAt.IsZero() {
		started = e.stamp(v.StartedAt)
	}
	for _, f := range [][2]string{{"Since:", since}, {"Region:", v.Region}, {"Type:", v.Type}, {"Image:", v.Image},
		{"Spot:", spot}, {"SSH keys:", keys}, {"Started:", started}, {"Ended:", e.stampIf(v.EndedAt)}} {
		fields(w, indent+f[0], f[1])
	}
}
