// Package worker runs lifecycle workflows and their activities: configuration,
// the one place where adapters meet ports (wire.go), start and stop, health.
package worker

import (
	"cmp"
	"log/slog"

	"github.com/gpuaas/gpuaas/internal/settings"
	"github.com/gpuaas/gpuaas/schema"
)

// nextConfig is the next step after a bad configuration.
const nextConfig = "gpuaas dev env prints a working set for this machine"

// Config is the worker's configuration. It is read from the environment by
// ConfigFromEnv and nowhere else; Temporal's address and namespace come from
// the ecosystem's own variables.
type Config struct {
	// DatabaseURL is Postgres. From GPUAAS_DATABASE_URL, or from the file named
	// by GPUAAS_DATABASE_URL_FILE.
	DatabaseURL string
	// VaultAddr is VAULT_ADDR; the role and secret id are read from
	// GPUAAS_VAULT_ROLE_ID_FILE and GPUAAS_VAULT_SECRET_ID_FILE.
	VaultAddr    string
	RoleIDFile   string
	SecretIDFile string
	// MetricsAddr serves /metrics and /healthz. GPUAAS_METRICS_ADDR. Defaults to
	// 127.0.0.1:9090.
	MetricsAddr string
	// Env is the environment's name, in every identity and envelope. GPUAAS_ENV.
	// Defaults to dev.
	Env string
	// LogLevel is GPUAAS_LOG_LEVEL: debug, info, warn, error. Defaults to info.
	LogLevel slog.Level
}

// ConfigFromEnv reads and checks the configuration; the error lists every
// fault at once.
func ConfigFromEnv(getenv func(string) string) (Config, error) {
	r := settings.From(getenv)
	c := Config{
		DatabaseURL:  r.Secret("GPUAAS_DATABASE_URL"),
		VaultAddr:    r.Need("VAULT_ADDR"),
		RoleIDFile:   r.Need("GPUAAS_VAULT_ROLE_ID_FILE"),
		SecretIDFile: r.Need("GPUAAS_VAULT_SECRET_ID_FILE"),
		MetricsAddr:  cmp.Or(getenv("GPUAAS_METRICS_ADDR"), "127.0.0.1:9090"),
		Env:          cmp.Or(getenv("GPUAAS_ENV"), "dev"),
		LogLevel:     r.LogLevel(),
	}
	return c, r.Err(nextConfig)
}

// secrets are what the worker holds and Temporal must never see.
func (c Config) secrets() []schema.Secret { return settings.Secrets(c.DatabaseURL, c.SecretIDFile) }
