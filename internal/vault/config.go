package vault

import (
	"log/slog"
	"time"
)

// Config says how a process of ours talks to Vault. TLS, proxy and namespace
// settings are read from the ecosystem's own variables (VAULT_CACERT,
// VAULT_NAMESPACE, …); VAULT_TOKEN and VAULT_AGENT_ADDR are ignored.
type Config struct {
	// Address is Vault's URL, for example https://vault.example:8200. Defaults
	// to VAULT_ADDR.
	Address string
	// RoleIDFile and SecretIDFile hold the process's AppRole credentials, as
	// Setup wrote them. They are read at each login, so that new ones are taken
	// without a restart.
	RoleIDFile   string
	SecretIDFile string
	// Env is the environment's name: the trust domain of node identities and
	// the last part of the task key's name.
	Env string
	// Timeout bounds each call, its second attempt included. Defaults to 10 s.
	Timeout time.Duration
	// RefreshEvery is how old cached CA certificates may get before they are
	// read again. Defaults to 1 minute.
	RefreshEvery time.Duration
	// Log gets what happens in the background: renewals that fail, new logins.
	// Defaults to slog.Default.
	Log *slog.Logger
	// Observe is called after each request with its name (sign, issue, login,
	// renew, …), duration and mapped error. Defaults to nothing.
	Observe func(op string, d time.Duration, err error)
}

// AdminConfig says how Setup and SetSigner talk to Vault.
type AdminConfig struct {
	// Address is Vault's URL. Defaults to VAULT_ADDR.
	Address string
	// TokenFile holds a token and nothing else; for example a root token's file
	// or ~/.vault-token. The token may mount engines, make keys and write
	// policies for Setup, and has the policy gpuaas-sets for SetSigner; a token
	// may be given that policy before Setup has written it.
	TokenFile string
	// Timeout bounds each call. Defaults to 10 s.
	Timeout time.Duration
	// Log gets one line for each thing that was made. Defaults to slog.Default.
	Log *slog.Logger
}

// SetupConfig says what Setup makes.
type SetupConfig struct {
	// Env is the environment's name, [a-z0-9][a-z0-9.-]* and at most 40 long.
	// One Vault (or one namespace of it) serves one environment.
	Env string
	// NodeAPINames are the DNS names and IP addresses the API's server
	// certificate may carry, and will.
	NodeAPINames []string
	// OutDir gets the files worker-role-id, worker-secret-id, api-role-id and
	// api-secret-id, mode 0600.
	OutDir string
}
