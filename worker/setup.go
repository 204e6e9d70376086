package worker

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// setupActor is the actor of a setup in the audit trail.
const setupActor = "gpuaas admin setup"

// SetupOptions are the options of Setup. The rest comes from the environment: see
// setupConfig.
type SetupOptions struct {
	Temporal temporal.Config
	// Getenv reads the environment.
	Getenv func(string) string
	// Progress receives a line for each service that is prepared.
	Progress io.Writer
}

// setupConfig is the configuration of Setup.
type setupConfig struct {
	DatabaseURL    schema.Secret `env:"GPUAAS_DATABASE_URL,required" help:"Postgres connection URL."`
	VaultAddr      string        `env:"VAULT_ADDR,required" help:"URL of Vault."`
	VaultTokenFile string        `env:"GPUAAS_VAULT_TOKEN_FILE,required" help:"File with a privileged Vault token."`
	OutDir         string        `env:"GPUAAS_SETUP_OUT_DIR" help:"Directory to which the role IDs and secret IDs are written. Required without GPUAAS_VAULT_KUBERNETES_MOUNT."`
	KubeMount      string        `env:"GPUAAS_VAULT_KUBERNETES_MOUNT" help:"Path of Vault's Kubernetes auth method. With it, setup writes the roles for service accounts there."`
	KubeNamespace  string        `env:"GPUAAS_VAULT_KUBERNETES_NAMESPACE" envDefault:"gpuaas" help:"Kubernetes namespace of the service accounts."`
	KubeAudience   string        `env:"GPUAAS_VAULT_KUBERNETES_AUDIENCE" envDefault:"vault" help:"Audience of the service accounts' tokens."`
	SecretIDTTL    time.Duration `env:"GPUAAS_VAULT_SECRET_ID_TTL" envDefault:"720h" help:"Lifetime of the secret IDs of worker and API; 0s for no end."`
	WorkerCIDRs    []string      `env:"GPUAAS_VAULT_WORKER_CIDRS" help:"Networks from which the worker may use Vault, for example 10.1.0.0/24. Default: all."`
	APICIDRs       []string      `env:"GPUAAS_VAULT_API_CIDRS" help:"Networks from which the API may use Vault. Default: all."`
	Env            string        `env:"GPUAAS_ENV,required" help:"Name of the environment."`
	NodeAPINames   []string      `env:"GPUAAS_NODE_API_NAMES" envDefault:"localhost,127.0.0.1" help:"Host names and addresses of the node API, for its certificate."`
}

// Check reports faults in the values.
func (c *setupConfig) Check(f *daemon.Faults) {
	f.Check(c.OutDir == "" && c.KubeMount == "", "GPUAAS_SETUP_OUT_DIR must be set, or GPUAAS_VAULT_KUBERNETES_MOUNT")
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
	blocked := func(by postgres.Blockers) { fmt.Fprintf(o.Progress, "database: a migration waits for %s\n", by) }
	if err := store.MigrateReporting(ctx, c.DatabaseURL.Reveal(), blocked); err != nil {
		return err
	}
	fmt.Fprintln(o.Progress, "database: schema is up to date")
	admin, err := vault.NewAdmin(c.vaultAdmin(o.Progress))
	if err != nil {
		return err
	}
	if err := admin.Setup(ctx, c.NodeAPINames, c.OutDir); err != nil {
		return err
	}
	fmt.Fprintln(o.Progress, "vault: CAs, signing keys, roles and policies are in place")
	version, err := publishVerifierSet(ctx, c, admin)
	if err := noteSet(o.Progress, version, err); err != nil {
		return err
	}
	return prepareTemporal(ctx, o)
}

// leastRetention is below which setup warns: a cancel or a repeat with --direct finds an
// ended operation only while Temporal retains it.
const leastRetention = 7 * 24 * time.Hour

func prepareTemporal(ctx context.Context, o SetupOptions) error {
	t, err := temporal.Dial(o.Temporal)
	if err != nil {
		return err
	}
	defer t.Close()
	if err := t.Installation.Setup(ctx); err != nil {
		if temporal.NeedsOther(err) {
			fmt.Fprintf(o.Progress, "temporal: someone with the permission can create the namespace and its search attributes:\n\n%s\n", t.Installation.Instructions())
			return schema.AsError(err).WithNext("run the commands above for this Temporal, then: gpuaas admin setup --skip-namespace")
		}
		return err
	}
	if keeps, err := t.Installation.Retention(ctx); err == nil && keeps < leastRetention {
		fmt.Fprintf(o.Progress, "temporal: warning: namespace %s retains closed operations for only %s; at least %s is recommended\n",
			t.Namespace(), lifecycle.Span(keeps), lifecycle.Span(leastRetention))
	}
	fmt.Fprintf(o.Progress, "temporal: namespace %s and its search attributes are in place\n", t.Namespace())
	return nil
}

func (c setupConfig) vaultAdmin(progress io.Writer) vault.AdminConfig {
	return vault.AdminConfig{Address: c.VaultAddr, TokenFile: c.VaultTokenFile, Env: c.Env,
		Logins: vault.Logins{SecretIDTTL: c.SecretIDTTL, WorkerCIDRs: c.WorkerCIDRs, APICIDRs: c.APICIDRs,
			Kubernetes: vault.ServiceAccounts{Mount: c.KubeMount, Namespace: c.KubeNamespace, Audience: c.KubeAudience}}, Log: slog.New(slog.NewTextHandler(progress, nil))}
}

// noteSet reports the result of publishVerifierSet. If Vault has retired the key on record, setup
// continues: the database was restored, and the revocation that ends this needs the API and a worker.
func noteSet(progress io.Writer, version int64, err error) error {
	switch e := schema.AsError(err); {
	case err == nil:
		fmt.Fprintf(progress, "trust: verifier set %d is published\n", version)
	case e.Reason == vault.ReasonKeyRetired:
		fmt.Fprintf(progress, "trust: warning: %s; when the API and a worker run: %s\n", e.Message, e.Next)
	default:
		return err
	}
	return nil
}

// publishVerifierSet publishes the first verifier set, or the successor of the
// newest one if its renewal is due. It returns the newest version.
func publishVerifierSet(ctx context.Context, c setupConfig, admin *vault.Admin) (version int64, err error) {
	db, err := store.Open(ctx, store.Config{URL: c.DatabaseURL.Reveal()})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return admin.Publish(ctx, db.Identities, audit.Subject{Actor: setupActor}, time.Now())
}
