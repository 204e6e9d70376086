package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/internal/verifierset"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
)

// setupActor is the actor of a setup in the audit trail.
const setupActor = "gpuaas admin setup"

// SetupOptions are the options of Setup. The rest comes from the environment: see
// setupConfig.
type SetupOptions struct {
	TemporalAddress   string
	TemporalNamespace string
	// Getenv reads the environment.
	Getenv func(string) string
	// Talk receives a line for each service that is prepared.
	Talk io.Writer
}

// setupConfig is the configuration of Setup.
type setupConfig struct {
	DatabaseURL    schema.Secret `env:"GPUAAS_DATABASE_URL,required" help:"Postgres connection URL."`
	VaultAddr      string        `env:"VAULT_ADDR,required" help:"URL of Vault."`
	VaultTokenFile string        `env:"GPUAAS_VAULT_TOKEN_FILE,required" help:"File with a privileged Vault token."`
	OutDir         string        `env:"GPUAAS_SETUP_OUT_DIR,required" help:"Directory to which the role IDs and secret IDs are written."`
	Env            string        `env:"GPUAAS_ENV" envDefault:"dev" help:"Name of the environment."`
	NodeAPINames   []string      `env:"GPUAAS_NODE_API_NAMES" envDefault:"localhost,127.0.0.1" help:"Host names and addresses of the node API, for its certificate."`
}

// Setup prepares the database, Vault and Temporal for this version, and publishes
// the first verifier set. Running it again changes nothing, except that a
// verifier set with less than half of its lifetime left gets a successor with the
// same keys.
func Setup(ctx context.Context, o SetupOptions) error {
	var c setupConfig
	if err := daemon.Load(&c, o.Getenv); err != nil {
		return schema.AsError(err).WithNext("gpuaas admin setup --help")
	}
	if err := store.Migrate(ctx, c.DatabaseURL.Reveal()); err != nil {
		return err
	}
	fmt.Fprintln(o.Talk, "database: schema is up to date")
	if err := setupVault(ctx, c, o.Talk); err != nil {
		return err
	}
	fmt.Fprintln(o.Talk, "vault: CAs, signing keys, roles and policies are in place")
	version, err := publishVerifierSet(ctx, c, o.Talk)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Talk, "trust: verifier set %d is published\n", version)
	t, err := temporal.Dial(temporal.Config{Address: o.TemporalAddress, Namespace: o.TemporalNamespace})
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.Installation.Setup(ctx); err != nil {
		return err
	}
	fmt.Fprintf(o.Talk, "temporal: namespace %s and its search attributes are in place\n", t.Namespace())
	return nil
}

func (c setupConfig) vaultAdmin(talk io.Writer) vault.AdminConfig {
	return vault.AdminConfig{Address: c.VaultAddr, TokenFile: c.VaultTokenFile, Log: slog.New(slog.NewTextHandler(talk, nil))}
}

func setupVault(ctx context.Context, c setupConfig, talk io.Writer) error {
	return vault.Setup(ctx, c.vaultAdmin(talk), vault.SetupConfig{Env: c.Env, NodeAPINames: c.NodeAPINames, OutDir: c.OutDir})
}

// publishVerifierSet publishes the first verifier set, or the successor of the
// newest one if its renewal is due. It returns the newest version.
func publishVerifierSet(ctx context.Context, c setupConfig, talk io.Writer) (version int64, err error) {
	db, err := store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal()})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	author, err := vault.NewVerifierSetSigner(c.vaultAdmin(talk), c.Env)
	if err != nil {
		return 0, err
	}
	return verifierset.Publish(ctx, db, author, audit.Subject{Actor: setupActor}, time.Now())
}
