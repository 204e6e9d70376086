package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/gpuaas/gpuaas/api/client"
	gpuschema "github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// removeTime bounds the wait for the removal of a node.
const removeTime = 10 * time.Minute

// changeReason is the reason of each change in the audit trail.
const changeReason = "changed by Terraform"

// nodeResource is the resource gpuaas_node: a node of the inventory. Terraform does not enroll it.
type nodeResource struct{ api *client.Client }

// nodeModel is the state of a gpuaas_node.
type nodeModel struct {
	ID             types.String `tfsdk:"id"`
	Host           types.String `tfsdk:"host"`
	SKU            types.String `tfsdk:"sku"`
	Region         types.String `tfsdk:"region"`
	GPUsTotal      types.Int64  `tfsdk:"gpus_total"`
	OnboardingMode types.String `tfsdk:"onboarding_mode"`
	LifecycleClass types.String `tfsdk:"lifecycle_class"`
	Labels         types.Map    `tfsdk:"labels"`
	State          types.String `tfsdk:"state"`
}

// Metadata implements resource.Resource.
func (*nodeResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_node"
}

// Schema implements resource.Resource.
func (*nodeResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	replace := []planmodifier.String{stringplanmodifier.RequiresReplace()}
	resp.Schema = schema.Schema{
		Description: "A node of the inventory. Terraform registers it; its enrollment is an operation of its own. " +
			"Destroying it removes a node that has never enrolled or is retired, and is rejected otherwise.",
		Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true, Description: "ID of the node, a UUID.",
				PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
			"host": schema.StringAttribute{Required: true, PlanModifiers: replace,
				Description: "Host name or IP address. A change replaces the node."},
			"sku":        schema.StringAttribute{Required: true, Description: "Name of the SKU. It cannot be changed once the node has enrolled."},
			"region":     schema.StringAttribute{Required: true, Description: "Code of the region. It cannot be changed once the node has enrolled."},
			"gpus_total": schema.Int64Attribute{Optional: true, Computed: true, Description: "Number of GPUs. Default: that of the SKU."},
			"onboarding_mode": schema.StringAttribute{Optional: true, Computed: true, PlanModifiers: replace,
				Default:     stringdefault.StaticString(inventory.ProviderManual),
				Description: "Provider of the machine, as gpuaas provider list shows it. Default: manual. A change replaces the node."},
			"lifecycle_class": schema.StringAttribute{Optional: true, Computed: true, PlanModifiers: replace,
				Default:     stringdefault.StaticString(string(inventory.ClassPersistent)),
				Description: "persistent, ephemeral or spot. Default: persistent. A change replaces the node."},
			"labels": schema.MapAttribute{Optional: true, ElementType: types.StringType, Description: "All labels of the node."},
			"state":  schema.StringAttribute{Computed: true, Description: "State of the node, for example registered or active."},
		},
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *nodeResource) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.api = clientOf(req.ProviderData)
}

// Create registers the node.
func (r *nodeResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m nodeModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	labels := map[string]string{}
	if resp.Diagnostics.Append(m.Labels.ElementsAs(ctx, &labels, false)...); resp.Diagnostics.HasError() {
		return
	}
	n, err := r.api.RegisterNode(ctx, wire.RegisterNodeRequest{Host: m.Host.ValueString(), SKU: m.SKU.ValueString(),
		RegionCode: m.Region.ValueString(), GPUsTotal: int(m.GPUsTotal.ValueInt64()), OnboardingMode: m.OnboardingMode.ValueString(),
		LifecycleClass: inventory.Class(m.LifecycleClass.ValueString()), Labels: labels})
	if err != nil {
		addError(&resp.Diagnostics, "Cannot register node "+m.Host.ValueString(), err)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m.with(n))...)
}

// Read implements resource.Resource. A node that was removed leaves the state.
func (r *nodeResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m nodeModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	n, err := r.api.Node(ctx, m.ID.ValueString())
	switch {
	case gpuschema.KindOf(err) == gpuschema.KindNotFound || err == nil && n.State == lifecycle.NodeRemoved:
		resp.State.RemoveResource(ctx)
	case err != nil:
		addError(&resp.Diagnostics, "Cannot read node "+m.ID.ValueString(), err)
	default:
		resp.Diagnostics.Append(resp.State.Set(ctx, m.with(n))...)
	}
}

// Update changes the properties that differ.
func (r *nodeResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state nodeModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.Append(req.State.Get(ctx, &state)...); resp.Diagnostics.HasError() {
		return
	}
	change := wire.NodeChange{Reason: changeReason, Labels: map[string]string{}}
	if !plan.SKU.Equal(state.SKU) {
		change.SKU = plan.SKU.ValueString()
	}
	if !plan.Region.Equal(state.Region) {
		change.RegionCode = plan.Region.ValueString()
	}
	if !plan.GPUsTotal.IsUnknown() && !plan.GPUsTotal.Equal(state.GPUsTotal) {
		change.GPUsTotal = new(int(plan.GPUsTotal.ValueInt64()))
	}
	resp.Diagnostics.Append(plan.Labels.ElementsAs(ctx, &change.Labels, false)...)
	for key := range state.Labels.Elements() {
		if _, kept := change.Labels[key]; !kept {
			change.RemoveLabels = append(change.RemoveLabels, key)
		}
	}
	if resp.Diagnostics.HasError() {
		return
	}
	n, err := r.api.SetNode(ctx, state.ID.ValueString(), change)
	if err != nil {
		addError(&resp.Diagnostics, "Cannot change node "+state.Host.ValueString(), err)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan.with(n))...)
}

// Delete removes the node and waits for the end of the operation. The API rejects it for a node that
// must be drained and retired first, and says how.
func (r *nodeResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m nodeModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	summary := "Cannot remove node " + m.Host.ValueString()
	n, err := r.api.Node(ctx, m.ID.ValueString())
	if gpuschema.KindOf(err) == gpuschema.KindNotFound || err == nil && n.State == lifecycle.NodeRemoved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	started, err := r.api.Start(ctx, m.ID.ValueString(), lifecycle.ActionRemove, wire.LifecycleRequest{Reason: "destroyed by Terraform"})
	if err != nil {
		addError(&resp.Diagnostics, summary, err)
		return
	}
	op, err := r.api.WaitOperation(ctx, started.Operation.OperationID)
	switch o := op.Operation; {
	case err != nil:
		addError(&resp.Diagnostics, summary, err)
	case o.Stuck != nil:
		resp.Diagnostics.AddError(summary, "The operation needs a decision: "+o.Stuck.Message+"\n\nNext: "+o.Stuck.Next)
	case o.Status != lifecycle.OperationCompleted:
		resp.Diagnostics.AddError(summary, "The operation ended as "+string(o.Status)+": "+o.Outcome)
	}
}

// ImportState finds a node by its host name or ID.
func (r *nodeResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	n, err := r.api.Node(ctx, req.ID)
	if err != nil {
		addError(&resp.Diagnostics, "Cannot import node "+req.ID, err)
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), n.ID)...)
}

// with returns the state of a node. A node without labels keeps the difference between an empty and a
// missing map.
func (m nodeModel) with(n wire.NodeView) nodeModel {
	labels := types.MapNull(types.StringType)
	if len(n.Labels) > 0 || !m.Labels.IsNull() && !m.Labels.IsUnknown() {
		labels = labelsOf(n)
	}
	return nodeModel{ID: types.StringValue(n.ID), Host: types.StringValue(n.Host), SKU: types.StringValue(n.SKU),
		Region: types.StringValue(n.RegionCode), GPUsTotal: types.Int64Value(int64(n.GPUsTotal)),
		OnboardingMode: types.StringValue(n.OnboardingMode), LifecycleClass: types.StringValue(string(n.LifecycleClass)),
		Labels: labels, State: types.StringValue(string(n.State))}
}
