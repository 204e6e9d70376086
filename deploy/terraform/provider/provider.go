// Package provider is the Terraform provider of gpuaas: nodes and SKUs, through the admin API.
package provider

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema/version"
)

// The variables that replace attributes of the provider. They are those of the command line gpuaas.
const (
	envAddress   = "GPUAAS_API_URL"
	envToken     = "GPUAAS_API_TOKEN"
	envTokenFile = "GPUAAS_API_TOKEN_FILE"
)

// gpuaas is the provider.
type gpuaas struct{}

// New returns the provider.
func New() provider.Provider { return gpuaas{} }

// config is the block provider "gpuaas".
type config struct {
	Address   types.String `tfsdk:"address"`
	TokenFile types.String `tfsdk:"token_file"`
	CAFile    types.String `tfsdk:"ca_file"`
}

// Metadata implements provider.Provider.
func (gpuaas) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName, resp.Version = "gpuaas", version.Version()
}

// Schema implements provider.Provider. There is no attribute for the token itself, so that it is in
// no configuration, plan or state.
func (gpuaas) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Registers nodes and SKUs of gpuaas through its admin API.",
		Attributes: map[string]schema.Attribute{
			"address": schema.StringAttribute{Optional: true,
				Description: "Address of the admin API, for example https://gpuaas.example.com. Default: the variable " + envAddress + "."},
			"token_file": schema.StringAttribute{Optional: true,
				Description: "File with the bearer token of a subject with the role operator, or admin for gpuaas_sku. Default: the variable " +
					envToken + ", which contains the token, or " + envTokenFile + ", which names a file."},
			"ca_file": schema.StringAttribute{Optional: true,
				Description: "PEM file with the CA certificates of the admin API. Default: those of the system."},
		},
	}
}

// Configure implements provider.Provider.
func (gpuaas) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var c config
	if resp.Diagnostics.Append(req.Config.Get(ctx, &c)...); resp.Diagnostics.HasError() {
		return
	}
	api, err := c.client()
	if err != nil {
		resp.Diagnostics.AddError("The provider gpuaas is not configured", err.Error())
		return
	}
	resp.ResourceData, resp.DataSourceData = api, api
}

func (c config) client() (*client.Client, error) {
	options := []client.Option{client.WithUserAgent("terraform-provider-gpuaas/" + version.Version())}
	switch token, file := os.Getenv(envToken), cmp.Or(c.TokenFile.ValueString(), os.Getenv(envTokenFile)); {
	case !c.TokenFile.IsNull() || token == "" && file != "":
		options = append(options, client.WithTokenFile(file))
	case token != "":
		options = append(options, client.WithToken(token))
	default:
		return nil, errors.New("there is no token: set token_file, " + envToken + " or " + envTokenFile)
	}
	if ca := c.CAFile.ValueString(); ca != "" {
		options = append(options, client.WithCAFile(ca))
	}
	address := cmp.Or(c.Address.ValueString(), os.Getenv(envAddress))
	if address == "" {
		return nil, errors.New("there is no address: set address or " + envAddress)
	}
	return client.New(address, options...)
}

// Resources implements provider.Provider.
func (gpuaas) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		func() resource.Resource { return &nodeResource{} },
		func() resource.Resource { return &skuResource{} },
	}
}

// DataSources implements provider.Provider.
func (gpuaas) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{
		func() datasource.DataSource { return &nodeSource{} },
		func() datasource.DataSource { return &nodesSource{} },
	}
}

// clientOf returns the client of a resource or data source; nil before the provider is configured.
func clientOf(data any) *client.Client {
	c, _ := data.(*client.Client)
	return c
}

// addError adds an error of the admin API with what resolves it.
func addError(to *diag.Diagnostics, summary string, err error) {
	detail := err.Error()
	if e, ok := errors.AsType[*client.Error](err); ok && e.Next != "" {
		detail += "\n\nNext: " + e.Next
	}
	to.AddError(summary, detail)
}
