// Package worker runs lifecycle workflows and their activities: configuration,
// the one place where adapters meet ports (wire.go), start and stop, health.
package worker

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

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
	c := Config{
		VaultAddr:    getenv("VAULT_ADDR"),
		RoleIDFile:   getenv("GPUAAS_VAULT_ROLE_ID_FILE"),
		SecretIDFile: getenv("GPUAAS_VAULT_SECRET_ID_FILE"),
		MetricsAddr:  or(getenv("GPUAAS_METRICS_ADDR"), "127.0.0.1:9090"),
		Env:          or(getenv("GPUAAS_ENV"), "dev"),
	}
	var faults []string
	url, err := databaseURL(getenv)
	if err != nil {
		faults = append(faults, err.Error())
	}
	c.DatabaseURL = url
	if level := getenv("GPUAAS_LOG_LEVEL"); level != "" {
		if err := c.LogLevel.UnmarshalText([]byte(level)); err != nil {
			faults = append(faults, fmt.Sprintf("GPUAAS_LOG_LEVEL: unknown level %q", level))
		}
	}
	for name, value := range map[string]string{
		"VAULT_ADDR": c.VaultAddr, "GPUAAS_VAULT_ROLE_ID_FILE": c.RoleIDFile, "GPUAAS_VAULT_SECRET_ID_FILE": c.SecretIDFile,
	} {
		if value == "" {
			faults = append(faults, name+" is not set")
		}
	}
	if len(faults) > 0 {
		return Config{}, schema.NewError(schema.KindInvalidRequest, "configuration: %s", strings.Join(faults, "; ")).
			WithNext("gpuaas dev env prints a working set for this machine")
	}
	return c, nil
}

// databaseURL reads the URL from its variable or its file; the error never
// repeats it.
func databaseURL(getenv func(string) string) (string, error) {
	if url := getenv("GPUAAS_DATABASE_URL"); url != "" {
		return url, nil
	}
	file := getenv("GPUAAS_DATABASE_URL_FILE")
	if file == "" {
		return "", schema.Errorf(schema.KindInvalidRequest, "GPUAAS_DATABASE_URL or GPUAAS_DATABASE_URL_FILE is not set")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("GPUAAS_DATABASE_URL_FILE: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// secrets are what the worker holds and Temporal must never see.
func (c Config) secrets() []schema.Secret {
	var out []schema.Secret
	if u, err := url.Parse(c.DatabaseURL); err == nil {
		if password, ok := u.User.Password(); ok {
			out = append(out, schema.NewSecret(password))
		}
	}
	// A file that cannot be read is the login's to report.
	if raw, err := os.ReadFile(c.SecretIDFile); err == nil {
		out = append(out, schema.NewSecret(strings.TrimSpace(string(raw))))
	}
	return out
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
