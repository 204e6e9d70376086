package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
)

func newAdmin(e *env) *cobra.Command {
	return newGroup("admin", "Prepare the services gpuaas runs on", "Prepares the services that gpuaas runs on.", newAdminSetup(e))
}

func newAdminSetup(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "setup", Short: "Prepare database, Vault and Temporal",
		Long: `Runs the database's migrations, makes Vault's mounts, keys, roles and policies,
publishes the first verifier set, and makes Temporal's namespace, search attributes
and the reclaimer's schedule. What stands already is left alone, so it can be run
again at any time; a verifier set with less than half of its life left gets a
successor. After an upgrade run it before the new API and worker.

Environment:
  GPUAAS_DATABASE_URL      the database (or GPUAAS_DATABASE_URL_FILE)
  VAULT_ADDR               Vault
  GPUAAS_VAULT_TOKEN_FILE  a file with a token that may make mounts and policies, and
                           has the policy gpuaas-sets where it is not root
  GPUAAS_SETUP_OUT_DIR     where the role ids of worker and API are written
  GPUAAS_ENV               name of this environment (default dev)
  GPUAAS_NODE_API_NAMES    names in the node API's certificate`,
		Example: "  gpuaas admin setup",
		Args:    noArgs(), RunE: func(c *cobra.Command, _ []string) error { return runAdminSetup(c.Context(), e) },
	}
}

func runAdminSetup(ctx context.Context, e *env) error {
	if e.platform.Setup == nil {
		return schema.Errorf(schema.KindInternal, "this build of gpuaas cannot set up: use the one that the project builds")
	}
	if err := e.platform.Setup(ctx, SetupOptions{Temporal: e.dialOptions(), Talk: cleaner{e.stderr}}); err != nil {
		return err
	}
	e.say("database, Vault and Temporal are ready")
	return nil
}
