package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
)

func newAdmin(e *env) *cobra.Command {
	return newGroup("admin", "Prepare and administer an installation", "Prepares and administers an installation.", newAdminSetup(e), newAdminToken(e))
}

func newAdminSetup(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "setup", Short: "Prepare database, Vault and Temporal",
		Long: `Runs the database migrations, creates Vault's mounts, keys, roles and policies,
publishes the first verifier set, and creates Temporal's namespace, search attributes
and the reclaimer's schedule. It is idempotent: existing parts are left unchanged, and
a verifier set with less than half of its life left gets a successor. After an upgrade
run it before the new API and worker.

Environment:
  GPUAAS_DATABASE_URL      the database (or GPUAAS_DATABASE_URL_FILE)
  VAULT_ADDR               Vault
  GPUAAS_VAULT_TOKEN_FILE  a file with a token that may create mounts and policies and,
                           unless it is root, has the policy gpuaas-sets
  GPUAAS_SETUP_OUT_DIR     directory for the role ids of worker and API
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
