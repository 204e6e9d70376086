// Command terraform-provider-gpuaas is a Terraform provider: it registers nodes and SKUs through the
// admin API.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/gpuaas/gpuaas/deploy/terraform/provider"
)

// address is the source of the provider in a configuration.
const address = "registry.terraform.io/gpuaas/gpuaas"

func main() {
	if err := providerserver.Serve(context.Background(), provider.New, providerserver.ServeOpts{Address: address}); err != nil {
		slog.Error("serving the provider", slog.Any("err", err))
		os.Exit(1)
	}
}
