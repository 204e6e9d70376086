package dev

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The variables that this package reads or passes on.
const (
	varTemporalAddress = "TEMPORAL_ADDRESS"
	varNamespace       = "TEMPORAL_NAMESPACE"
	varVaultAddr       = "VAULT_ADDR"
	varVaultToken      = "VAULT_TOKEN"
	varDatabaseURL     = "GPUAAS_DATABASE_URL"
	varDatabaseFile    = "GPUAAS_DATABASE_URL_FILE"
	varNodeDatabase    = "GPUAAS_NODE_DATABASE_URL_FILE"
	varVaultTokenFile  = "GPUAAS_VAULT_TOKEN_FILE"
	varWebUI           = "GPUAAS_WEB_UI_URL"
	varLogLevel        = "GPUAAS_LOG_LEVEL"
	varLibvirtState    = "GPUAAS_LIBVIRT_STATE_DIR"
	varLibvirtHosts    = "GPUAAS_LIBVIRT_HOSTS"
	// varTemporalPostgres contains a password, so it is not a flag of the server.
	varTemporalPostgres = "GPUAAS_DEV_TEMPORAL_POSTGRES"
)

const (
	defaultNamespace = "gpuaas"
	// trustDomain is the environment name in every identity.
	trustDomain = "dev"
	// nodeAPIHost is the node API's host name for agents, which reject an IP
	// address.
	nodeAPIHost = "localhost"
	// hostOfMachine is the address of this host in the network of a virtual machine.
	hostOfMachine = "10.0.2.2"
)

// variables is a set of environment variables in a stable order.
type variables []variable

type variable struct{ name, value string }

// engines returns the addresses that all our programs need.
func (r record) engines() variables {
	return variables{
		{varTemporalAddress, r.Temporal.Address},
		{varNamespace, r.Namespace},
		{varVaultAddr, r.Vault.Address},
	}
}

// shell returns the variables for gpuaas in another shell (`dev env`), except those of
// `gpuaas admin setup`.
func (r record) shell(token string) variables {
	return append(r.engines(),
		variable{"GPUAAS_API_URL", r.adminURL()},
		variable{"GPUAAS_API_TOKEN", token},
		variable{varWebUI, r.WebUI},
		variable{"GPUAAS_NODE_API_URL", r.nodeURL()},
		variable{"GPUAAS_WORKER_METRICS_URL", "http://" + loopback(r.Ports.WorkerMetrics) + "/metrics"},
		variable{"GPUAAS_API_METRICS_URL", "http://" + loopback(r.Ports.APIMetrics) + "/metrics"},
	).with(r.Temporal.owned(), "GPUAAS_TEMPORAL_METRICS_URL", "http://"+loopback(r.Ports.TemporalMetrics)+"/metrics")
}

// setup returns the configuration of `gpuaas admin setup`.
func (r record) setup(l layout) variables { return append(r.engines(), setupVariables(l)...) }

// setupVariables returns the part of the setup's configuration that is not an address.
func setupVariables(l layout) variables {
	return variables{
		{varDatabaseFile, l.databaseURL()},
		{varVaultTokenFile, l.vaultToken()},
		{"GPUAAS_SETUP_OUT_DIR", l.secretsDir()},
		{"GPUAAS_ENV", trustDomain},
		{"GPUAAS_NODE_API_NAMES", nodeAPIHost + ",127.0.0.1,api.internal"},
	}
}

// worker returns the configuration of gpuaas-worker.
func (r record) worker(l layout) variables {
	return append(r.engines(),
		variable{varDatabaseFile, r.databaseURL(l, roleWorker)},
		variable{"GPUAAS_VAULT_ROLE_ID_FILE", l.secret("worker-role-id")},
		variable{"GPUAAS_VAULT_SECRET_ID_FILE", l.secret("worker-secret-id")},
		variable{"GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE", l.secret("rotator-role-id")},
		variable{"GPUAAS_VAULT_ROTATOR_SECRET_ID_FILE", l.secret("rotator-secret-id")},
		variable{"GPUAAS_METRICS_ADDR", loopback(r.Ports.WorkerMetrics)},
		variable{"GPUAAS_NODE_PUBLIC_URL", r.nodeURL()},
		variable{"GPUAAS_AUDIT_CHECKPOINT_INTERVAL", "10s"},
		variable{"GPUAAS_ENV", trustDomain},
	).with(os.Getenv(varLibvirtState) == "", varLibvirtState, libvirtDir(l)).
		with(os.Getenv(varLibvirtHosts) == "", varLibvirtHosts, nodeAPIHost+":"+hostOfMachine)
}

// api returns the configuration of gpuaas-api.
func (r record) api(l layout) variables {
	return append(r.engines(),
		variable{varDatabaseFile, r.databaseURL(l, roleAPIAdmin)},
		variable{varNodeDatabase, r.databaseURL(l, roleAPINode)},
		variable{"GPUAAS_VAULT_ROLE_ID_FILE", l.secret("api-role-id")},
		variable{"GPUAAS_VAULT_SECRET_ID_FILE", l.secret("api-secret-id")},
		variable{"GPUAAS_ADMIN_TOKEN_FILE", l.adminToken()},
		variable{"GPUAAS_ADMIN_ADDR", loopback(r.Ports.Admin)},
		variable{"GPUAAS_NODE_ADDR", loopback(r.Ports.Node)},
		variable{"GPUAAS_NODE_PUBLIC_URL", r.nodeURL()},
		variable{"GPUAAS_METRICS_ADDR", loopback(r.Ports.APIMetrics)},
		variable{"GPUAAS_STATE_DIR", filepath.Join(l.dir, "api")},
		variable{"GPUAAS_LAME_DUCK", "0s"}, // no load balancer here
		variable{"GPUAAS_ENV", trustDomain},
	).with(r.WebUI != "", varWebUI, r.WebUI)
}

// databaseURL is the file with the database's URL for a process. A database that this
// package did not create, or an older version of it, has no logins for the roles.
func (r record) databaseURL(l layout, role string) string {
	if !r.ProcessRoles {
		return l.databaseURL()
	}
	return l.roleURL(role)
}

func (r record) adminURL() string { return "http://" + loopback(r.Ports.Admin) }

func (r record) nodeURL() string { return fmt.Sprintf("https://%s:%d", nodeAPIHost, r.Ports.Node) }

// with adds a variable if the condition holds.
func (v variables) with(condition bool, name, value string) variables {
	if !condition {
		return v
	}
	return append(v, variable{name, value})
}

// exports renders the variables for eval in a POSIX shell. It omits empty values.
func (v variables) exports() string {
	var b strings.Builder
	for _, x := range v {
		if x.value != "" {
			fmt.Fprintf(&b, "export %s='%s'\n", x.name, strings.ReplaceAll(x.value, "'", `'\''`))
		}
	}
	return b.String()
}

// inherited returns the part of this process's environment that our processes
// inherit: everything except the settings of our programs and of the engines' clients,
// which may belong to another stack. With keep, Temporal's and Vault's client settings
// (TLS, API keys) are included, for external engines. A token never is.
func inherited(environ []string, keep bool) []string {
	ours := []string{"GPUAAS_", "PG", "MAAS_"}
	if !keep {
		ours = append(ours, "TEMPORAL_", "VAULT_")
	}
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == varVaultToken || name != varLogLevel && slices.ContainsFunc(ours, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// ofProviders returns the settings of machine providers in an environment, which only the
// worker gets: some are secrets.
func ofProviders(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		return !slices.ContainsFunc([]string{"GPUAAS_LIBVIRT_", "GPUAAS_MAAS_", "MAAS_", "GPUAAS_SWEEP="},
			func(p string) bool { return strings.HasPrefix(kv, p) })
	})
}

// processEnv returns the complete environment of one of our processes.
func (r record) processEnv(v variables) []string {
	env := inherited(os.Environ(), !r.Temporal.owned() || !r.Vault.owned())
	for _, x := range v {
		env = append(env, x.name+"="+x.value) // the last entry takes effect
	}
	return env
}
