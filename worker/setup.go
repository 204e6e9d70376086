package worker

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/gpuaas/gpuaas/internal/settings"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
)

// SetupOptions say where Setup works; the rest is read from the environment:
// GPUAAS_DATABASE_URL (or _FILE), VAULT_ADDR, GPUAAS_VAULT_TOKEN_FILE,
// GPUAAS_SETUP_OUT_DIR, GPUAAS_ENV, GPUAAS_NODE_API_NAMES.
type SetupOptions struct {
	TemporalAddress   string
	TemporalNamespace string
	// Getenv reads the environment.
	Getenv func(string) string
	// Talk gets a line for each part that is ready.
	Talk io.Writer
}

// Setup prepares the database, Vault and Temporal for this version, and
// publishes the first verifier set. Run again it changes nothing, but for a
// verifier set of which less than half its life is left: that one gets a
// successor with the same keys.
func Setup(ctx context.Context, o SetupOptions) error {
	r := settings.From(o.Getenv)
	url := r.Secret("GPUAAS_DATABASE_URL")
	if err := r.Err(nextConfig); err != nil {
		return err
	}
	if err := store.Migrate(ctx, url); err != nil {
		return err
	}
	fmt.Fprintln(o.Talk, "database: schema is up to date")
	if err := setupVault(ctx, o); err != nil {
		return err
	}
	fmt.Fprintln(o.Talk, "vault: CAs, signing keys, roles and policies are in place")
	version, err := publishVerifierSet(ctx, o, url)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Talk, "trust: verifier set %d is published\n", version)
	c, err := temporal.Dial(ctx, temporal.Config{Address: o.TemporalAddress, Namespace: o.TemporalNamespace})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Setup(ctx); err != nil {
		return err
	}
	fmt.Fprintf(o.Talk, "temporal: namespace %s and its search attributes are in place\n", c.Namespace())
	return nil
}

func (o SetupOptions) env() string { return cmp.Or(o.Getenv("GPUAAS_ENV"), "dev") }

func (o SetupOptions) vaultAdmin() vault.AdminConfig {
	return vault.AdminConfig{Address: o.Getenv("VAULT_ADDR"), TokenFile: o.Getenv("GPUAAS_VAULT_TOKEN_FILE"),
		Log: slog.New(slog.NewTextHandler(o.Talk, nil))}
}

func setupVault(ctx context.Context, o SetupOptions) error {
	out := o.Getenv("GPUAAS_SETUP_OUT_DIR")
	token := o.Getenv("GPUAAS_VAULT_TOKEN_FILE")
	if out == "" || token == "" {
		return schema.NewError(schema.KindInvalidRequest,
			"GPUAAS_VAULT_TOKEN_FILE (a file with a privileged Vault token) and GPUAAS_SETUP_OUT_DIR (where the role ids go) must be set")
	}
	return vault.Setup(ctx, o.vaultAdmin(),
		vault.SetupConfig{
			Env:          o.env(),
			NodeAPINames: strings.Split(cmp.Or(o.Getenv("GPUAAS_NODE_API_NAMES"), "localhost,127.0.0.1"), ","),
			OutDir:       out,
		})
}
