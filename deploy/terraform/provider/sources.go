package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// nodeSource is the data source gpuaas_node: one node by ID or host name.
type nodeSource struct{ api *client.Client }

// nodesSource is the data source gpuaas_nodes: the nodes that a selector selects.
type nodesSource struct{ api *client.Client }

// rowModel is a node of a data source.
type rowModel struct {
	ID             types.String `tfsdk:"id"`
	Host           types.String `tfsdk:"host"`
	SKU            types.String `tfsdk:"sku"`
	Region         types.String `tfsdk:"region"`
	GPUsTotal      types.Int64  `tfsdk:"gpus_total"`
	OnboardingMode types.String `tfsdk:"onboarding_mode"`
	LifecycleClass types.String `tfsdk:"lifecycle_class"`
	Labels         types.Map    `tfsdk:"labels"`
	State          types.String `tfsdk:"state"`
	Cordoned       types.Bool   `tfsdk:"cordoned"`
	AgentVersion   types.String `tfsdk:"agent_version"`
}

// nodesModel is the data source gpuaas_nodes.
type nodesModel struct {
	Selector types.String `tfsdk:"selector"`
	Nodes    []rowModel   `tfsdk:"nodes"`
}

// rowAttributes are the attributes of a node that only the API sets.
func rowAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"id":              schema.StringAttribute{Computed: true, Description: "ID of the node, a UUID."},
		"host":            schema.StringAttribute{Computed: true, Description: "Host name or IP address."},
		"sku":             schema.StringAttribute{Computed: true, Description: "Name of the SKU."},
		"region":          schema.StringAttribute{Computed: true, Description: "Code of the region."},
		"gpus_total":      schema.Int64Attribute{Computed: true, Description: "Number of GPUs."},
		"onboarding_mode": schema.StringAttribute{Computed: true, Description: "Provider of the machine."},
		"lifecycle_class": schema.StringAttribute{Computed: true, Description: "persistent, ephemeral or spot."},
		"labels":          schema.MapAttribute{Computed: true, ElementType: types.StringType, Description: "All labels of the node."},
		"state":           schema.StringAttribute{Computed: true, Description: "State of the node, for example registered or active."},
		"cordoned":        schema.BoolAttribute{Computed: true, Description: "Whether the node takes no new workloads."},
		"agent_version":   schema.StringAttribute{Computed: true, Description: "Version of the node's agent; empty before its first heartbeat."},
	}
}

// Metadata implements datasource.DataSource.
func (*nodeSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_node"
}

// Schema implements datasource.DataSource.
func (*nodeSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	attributes := rowAttributes()
	attributes["host"] = schema.StringAttribute{Required: true, Description: "Host name of the node."}
	resp.Schema = schema.Schema{Description: "One node.", Attributes: attributes}
}

// Configure implements datasource.DataSourceWithConfigure.
func (d *nodeSource) Configure(_ context.Context, req datasource.ConfigureRequest, _ *datasource.ConfigureResponse) {
	d.api = clientOf(req.ProviderData)
}

// Read implements datasource.DataSource.
func (d *nodeSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m rowModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	n, err := d.api.Node(ctx, m.Host.ValueString())
	if err != nil {
		addError(&resp.Diagnostics, "Cannot read node "+m.Host.ValueString(), err)
		return
	}
	row := rowOf(n)
	row.Host = m.Host // an ID is accepted, too
	resp.Diagnostics.Append(resp.State.Set(ctx, row)...)
}

// Metadata implements datasource.DataSource.
func (*nodesSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_nodes"
}

// Schema implements datasource.DataSource.
func (*nodesSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Nodes in order of host name, without removed ones.",
		Attributes: map[string]schema.Attribute{
			"selector": schema.StringAttribute{Optional: true,
				Description: "Labels and the properties region, sku, state, provider, class and host, for example rack=r7,state=active. Default: all nodes."},
			"nodes": schema.ListNestedAttribute{Computed: true, Description: "The nodes.",
				NestedObject: schema.NestedAttributeObject{Attributes: rowAttributes()}},
		},
	}
}

// Configure implements datasource.DataSourceWithConfigure.
func (d *nodesSource) Configure(_ context.Context, req datasource.ConfigureRequest, _ *datasource.ConfigureResponse) {
	d.api = clientOf(req.ProviderData)
}

// Read implements datasource.DataSource.
func (d *nodesSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m nodesModel
	if resp.Diagnostics.Append(req.Config.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	f := client.NodeFilter{Limit: new(wire.MaxPage)}
	if !m.Selector.IsNull() {
		f.Selector = new(m.Selector.ValueString())
	}
	m.Nodes = []rowModel{}
	for n, err := range d.api.Nodes(ctx, f) {
		if err != nil {
			addError(&resp.Diagnostics, "Cannot list nodes", err)
			return
		}
		m.Nodes = append(m.Nodes, rowOf(n))
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

func rowOf(n wire.NodeView) rowModel {
	return rowModel{ID: types.StringValue(n.ID), Host: types.StringValue(n.Host), SKU: types.StringValue(n.SKU),
		Region: types.StringValue(n.RegionCode), GPUsTotal: types.Int64Value(int64(n.GPUsTotal)),
		OnboardingMode: types.StringValue(n.OnboardingMode), LifecycleClass: types.StringValue(string(n.LifecycleClass)), Labels: labelsOf(n),
		State: types.StringValue(string(n.State)), Cordoned: types.BoolValue(n.Cordoned), AgentVersion: types.StringValue(n.AgentVersion)}
}

// labelsOf returns the labels of a node; empty without any.
func labelsOf(n wire.NodeView) types.Map {
	labels := map[string]attr.Value{}
	for key, value := range n.Labels {
		labels[key] = types.StringValue(value)
	}
	return types.MapValueMust(types.StringType, labels)
}
