package vault

import (
	"log/slog"
	"time"
)

// Config configures a process's connection to Vault. TLS, proxy and namespace
// settings come from Vault's standard environment variables (VAULT_CACERT,
// VAULT_NAMESPACE, …). VAULT_TOKEN and VAULT_AGENT_ADDR are ignored.
type Config struct {
	// Address is Vault's URL, for example https://vault.example:8200. The default
	// is VAULT_ADDR.
	Address string
	// RoleIDFile and SecretIDFile contain the process's AppRole credentials, as
	// written by Setup. Each login reads them again, so that replaced credentials
	// take effect without a restart.
	RoleIDFile   string
	SecretIDFile string
	// Kubernetes replaces the AppRole if it has a role.
	Kubernetes KubernetesLogin
	// StateDir is a directory in which ServerCertificate saves the certificate, its key and the
	// CAs, for Resume. The default saves nothing.
	StateDir string
	// Env is the environment's name: the trust domain of node identities and
	// the last part of the task key's name.
	Env string
	// Log receives background events: failed renewals, repeated logins. The
	// default is slog.Default.
	Log *slog.Logger
	// Observe is called after each request with its operation (sign, issue, login,
	// renew, …), duration and converted error. A renewal without a response is not
	// observed. The default does nothing.
	Observe func(op string, d time.Duration, err error)
	// SecretIDEnds is called about once an hour with the remaining life of the secret ID,
	// unless it has no end. The default does nothing.
	SecretIDEnds func(left time.Duration)
}

// Logins limits the logins of the worker and the API.
type Logins struct {
	// SecretIDTTL is the lifetime of a secret ID, 0 for no end.
	SecretIDTTL time.Duration
	// WorkerCIDRs and APICIDRs are the networks from which the processes may log in and
	// use their tokens; empty for all.
	WorkerCIDRs, APICIDRs []string
	// Kubernetes allows logins with service accounts if it has a mount.
	Kubernetes ServiceAccounts
}

// ServiceAccounts are the service accounts gpuaas-worker, gpuaas-trust and gpuaas-api of a
// Kubernetes namespace. The one of a worker that also rotates keys is gpuaas-trust.
type ServiceAccounts struct {
	// Mount is the path of Vault's Kubernetes auth method, which must be configured for the
	// cluster; "" for none.
	Mount string
	// Namespace is that of the service accounts.
	Namespace string
	// Audience is the audience that their tokens must have.
	Audience string
}

// AdminConfig configures an Admin.
type AdminConfig struct {
	// Address is Vault's URL. The default is VAULT_ADDR.
	Address string
	// TokenFile contains only a token; for example a root token's file or
	// ~/.vault-token. For Setup, the token must be allowed to mount engines, make
	// keys and write policies. For verifier sets, the policy gpuaas-sets is enough; a
	// token may have that policy before Setup has written it.
	TokenFile string
	// Logins limits the logins of the worker and the API.
	Logins Logins
	// Env is the environment's name: see trust.ValidEnv.
	// One Vault (or one of its namespaces) serves one environment.
	Env string
	// Log receives one line for each object that was created. The default is
	// slog.Default.
	Log *slog.Logger
}
