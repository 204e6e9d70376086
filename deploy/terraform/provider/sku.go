package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/gpuaas/gpuaas/api/client"
	gpuschema "github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

// skuResource is the resource gpuaas_sku: an SKU of the catalog.
type skuResource struct{ api *client.Client }

// skuModel is the state of a gpuaas_sku.
type skuModel struct {
	Name           types.String `tfsdk:"name"`
	GPUModel       types.String `tfsdk:"gpu_model"`
	MaxGPUs        types.Int64  `tfsdk:"max_gpus"`
	MinCPUs        types.Int64  `tfsdk:"min_cpus"`
	MinMemoryBytes types.Int64  `tfsdk:"min_memory_bytes"`
	WorkloadDriver types.String `tfsdk:"workload_driver"`
	Active         types.Bool   `tfsdk:"active"`
}

// Metadata implements resource.Resource.
func (*skuResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sku"
}

// Schema implements resource.Resource.
func (*skuResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "An SKU of the catalog. An SKU cannot be changed, because nodes have it: add one with another name. " +
			"Destroying it deactivates it: new nodes cannot have it, and its name cannot be used again.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{Required: true, Description: "Name of the SKU. Another name is another SKU.",
				PlanModifiers: []planmodifier.String{stringplanmodifier.RequiresReplace()}},
			"gpu_model": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString(""),
				Description: "Part of the model name that each GPU reports. Default: any."},
			"max_gpus": schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(0),
				Description: "Number of GPUs of a node. Default: 0."},
			"min_cpus": schema.Int64Attribute{Required: true, Description: "Smallest number of CPUs of a node."},
			"min_memory_bytes": schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(0),
				Description: "Smallest size of the memory of a node in bytes. Default: any."},
			"workload_driver": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString(""),
				Description: "Workload driver of new nodes. Default: none."},
			"active": schema.BoolAttribute{Computed: true, Description: "Whether new nodes may have the SKU."},
		},
	}
}

// Configure implements resource.ResourceWithConfigure.
func (r *skuResource) Configure(_ context.Context, req resource.ConfigureRequest, _ *resource.ConfigureResponse) {
	r.api = clientOf(req.ProviderData)
}

// ModifyPlan rejects a change of an SKU when it is planned.
func (*skuResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.State.Raw.IsNull() || req.Plan.Raw.IsNull() { // it is created or destroyed
		return
	}
	var plan, state skuModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.Append(req.State.Get(ctx, &state)...); resp.Diagnostics.HasError() || !plan.Name.Equal(state.Name) {
		return
	}
	plan.Active = state.Active // computed
	if plan != state {
		addUnchangeable(resp, state.Name.ValueString())
	}
}

func addUnchangeable(resp *resource.ModifyPlanResponse, name string) {
	resp.Diagnostics.AddError("SKU "+name+" cannot be changed", "Nodes have it. Add an SKU with another name.")
}

// Create adds the SKU.
func (r *skuResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m skuModel
	if resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	sku, err := r.api.AddSKU(ctx, inventory.NewSKU{Name: m.Name.ValueString(), GPUModel: m.GPUModel.ValueString(),
		MaxGPUs: int(m.MaxGPUs.ValueInt64()), MinCPUs: int(m.MinCPUs.ValueInt64()), MinMemoryBytes: m.MinMemoryBytes.ValueInt64(),
		WorkloadDriver: m.WorkloadDriver.ValueString(), Reason: "added by Terraform"})
	if err != nil {
		addError(&resp.Diagnostics, "Cannot add SKU "+m.Name.ValueString(), err)
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, modelOf(sku))...)
}

// Read implements resource.Resource.
func (r *skuResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m skuModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	sku, err := r.api.SKU(ctx, m.Name.ValueString())
	switch {
	case gpuschema.KindOf(err) == gpuschema.KindNotFound:
		resp.State.RemoveResource(ctx)
	case err != nil:
		addError(&resp.Diagnostics, "Cannot read SKU "+m.Name.ValueString(), err)
	default:
		resp.Diagnostics.Append(resp.State.Set(ctx, modelOf(sku))...)
	}
}

// Update has only computed attributes to change: ModifyPlan rejects the others.
func (r *skuResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m skuModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// Delete deactivates the SKU.
func (r *skuResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m skuModel
	if resp.Diagnostics.Append(req.State.Get(ctx, &m)...); resp.Diagnostics.HasError() {
		return
	}
	if _, err := r.api.DeactivateSKU(ctx, m.Name.ValueString(), inventory.SKUDeactivation{Reason: "destroyed by Terraform"}); err != nil {
		addError(&resp.Diagnostics, "Cannot deactivate SKU "+m.Name.ValueString(), err)
	}
}

// ImportState finds an SKU by its name.
func (r *skuResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughID(ctx, path.Root("name"), req, resp)
}

func modelOf(s inventory.SKU) skuModel {
	return skuModel{Name: types.StringValue(s.Name), GPUModel: types.StringValue(s.GPUModel), MaxGPUs: types.Int64Value(int64(s.MaxGPUs)),
		MinCPUs: types.Int64Value(int64(s.MinCPUs)), MinMemoryBytes: types.Int64Value(s.MinMemoryBytes),
		WorkloadDriver: types.StringValue(s.WorkloadDriver), Active: types.BoolValue(s.Active)}
}
