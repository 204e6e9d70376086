package main

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
)

// minTokenLength keeps a guessable admin token out.
const minTokenLength = 16

var envName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,39}$`)

// config is the API's configuration. It is read from the environment by
// configFromEnv and nowhere else; Temporal's address and namespace come from
// the ecosystem's own variables.
type config struct {
	// databaseURL is Postgres: GPUAAS_DATABASE_URL, or the file named by
	// GPUAAS_DATABASE_URL_FILE.
	databaseURL string
	// vaultAddr is VAULT_ADDR; roleIDFile and secretIDFile are
	// GPUAAS_VAULT_ROLE_ID_FILE and GPUAAS_VAULT_SECRET_ID_FILE.
	vaultAddr    string
	roleIDFile   string
	secretIDFile string
	// adminAddr is GPUAAS_ADMIN_ADDR. Defaults to 127.0.0.1:8081.
	adminAddr string
	// nodeAddr is GPUAAS_NODE_ADDR. Defaults to 127.0.0.1:8443.
	nodeAddr string
	// nodeURL is GPUAAS_NODE_PUBLIC_URL: what nodes are told to connect to.
	// Defaults to https://localhost:8443.
	nodeURL string
	// metricsAddr serves /metrics and /healthz: GPUAAS_METRICS_ADDR. Defaults to
	// 127.0.0.1:9091.
	metricsAddr string
	// tokenHash is the SHA-256 of the content of GPUAAS_ADMIN_TOKEN_FILE, and
	// actor the subject it stands for: GPUAAS_ADMIN_ACTOR. Defaults to
	// admin-token.
	tokenHash [sha256.Size]byte
	actor     string
	// secrets are the bearer token, the database's password and the Vault
	// login: what Temporal must never see of this process.
	secrets []schema.Secret
	// env is the environment's name, in every identity: GPUAAS_ENV. Defaults to
	// dev.
	env string
	// issueRate is how many certificates a second this process has Vault sign:
	// GPUAAS_ISSUE_RATE. Defaults to nodeapi.DefaultIssueRate. With several
	// replicas each has its own budget; together they should stay below half of
	// what Vault signs.
	issueRate float64
	// agent is the node agent's package: GPUAAS_AGENT_OCI_REF, _DIGEST and
	// _PULL_TOKEN_FILE, or GPUAAS_AGENT_ARCHIVE. Defaults to none.
	agent agentPackage
	// logLevel is GPUAAS_LOG_LEVEL: debug, info, warn, error. Defaults to info.
	logLevel slog.Level
}

// usage is what --help prints.
const usage = `gpuaas-api serves the node API (mutual TLS) and the admin API (bearer token).

It is configured by the environment:
  GPUAAS_DATABASE_URL | GPUAAS_DATABASE_URL_FILE   Postgres
  VAULT_ADDR, GPUAAS_VAULT_ROLE_ID_FILE, GPUAAS_VAULT_SECRET_ID_FILE
  TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE             as the temporal command reads them
  GPUAAS_ADMIN_TOKEN_FILE                          the admin API's bearer token
  GPUAAS_ADMIN_ACTOR       (admin-token)           who that token is, in the audit
  GPUAAS_ADMIN_ADDR        (127.0.0.1:8081)
  GPUAAS_NODE_ADDR         (127.0.0.1:8443)
  GPUAAS_NODE_PUBLIC_URL   (https://localhost:8443)
  GPUAAS_METRICS_ADDR      (127.0.0.1:9091)
  GPUAAS_ENV               (dev)
  GPUAAS_ISSUE_RATE        (50) node certificates a second, of this process
  GPUAAS_AGENT_OCI_REF     registry/repository@sha256:… of the node agent's package;
                           GPUAAS_AGENT_DIGEST the blob's, where the reference is a
                           manifest's; GPUAAS_AGENT_PULL_TOKEN_FILE a bearer token
  GPUAAS_AGENT_ARCHIVE     or the package as a local file (./task package makes one)
  GPUAAS_LOG_LEVEL         (info)

Exit codes: 0 stopped by a signal, 1 failed, 2 bad configuration.
`

// configFromEnv reads and checks the configuration. The error lists every fault
// at once and repeats no secret.
func configFromEnv(getenv func(string) string) (config, error) {
	c := config{
		vaultAddr:    getenv("VAULT_ADDR"),
		roleIDFile:   getenv("GPUAAS_VAULT_ROLE_ID_FILE"),
		secretIDFile: getenv("GPUAAS_VAULT_SECRET_ID_FILE"),
		adminAddr:    cmp.Or(getenv("GPUAAS_ADMIN_ADDR"), "127.0.0.1:8081"),
		nodeAddr:     cmp.Or(getenv("GPUAAS_NODE_ADDR"), "127.0.0.1:8443"),
		nodeURL:      strings.TrimRight(cmp.Or(getenv("GPUAAS_NODE_PUBLIC_URL"), "https://localhost:8443"), "/"),
		metricsAddr:  cmp.Or(getenv("GPUAAS_METRICS_ADDR"), "127.0.0.1:9091"),
		actor:        cmp.Or(getenv("GPUAAS_ADMIN_ACTOR"), "admin-token"),
		env:          cmp.Or(getenv("GPUAAS_ENV"), "dev"),
	}
	var f faults
	c.databaseURL = f.secret("GPUAAS_DATABASE_URL", getenv)
	token := f.file("GPUAAS_ADMIN_TOKEN_FILE", getenv("GPUAAS_ADMIN_TOKEN_FILE"))
	c.tokenHash = sha256.Sum256([]byte(token))
	f.add(token != "" && len(token) < minTokenLength, "GPUAAS_ADMIN_TOKEN_FILE: the token is shorter than %d characters", minTokenLength)
	f.add(c.vaultAddr == "", "VAULT_ADDR is not set")
	f.add(c.roleIDFile == "", "GPUAAS_VAULT_ROLE_ID_FILE is not set")
	f.add(c.secretIDFile == "", "GPUAAS_VAULT_SECRET_ID_FILE is not set")
	f.address("GPUAAS_ADMIN_ADDR", c.adminAddr)
	f.address("GPUAAS_NODE_ADDR", c.nodeAddr)
	f.address("GPUAAS_METRICS_ADDR", c.metricsAddr)
	u, err := url.Parse(c.nodeURL)
	f.add(err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "",
		"GPUAAS_NODE_PUBLIC_URL must read https://host:port")
	f.add(!envName.MatchString(c.env), "GPUAAS_ENV must be 1 to 40 of a-z 0-9 . -")
	c.issueRate = f.rate("GPUAAS_ISSUE_RATE", getenv("GPUAAS_ISSUE_RATE"))
	c.agent = f.agentPackage(getenv)
	c.secrets = c.secretsWith(token)
	if level := getenv("GPUAAS_LOG_LEVEL"); level != "" {
		f.add(c.logLevel.UnmarshalText([]byte(level)) != nil, "GPUAAS_LOG_LEVEL: unknown level %q", level)
	}
	return c, f.error()
}

// secretsWith lists what Temporal must never see. A file that cannot be read is
// the login's to report.
func (c config) secretsWith(token string) []schema.Secret {
	secrets := []schema.Secret{schema.NewSecret(token)}
	if u, err := url.Parse(c.databaseURL); err == nil {
		if password, ok := u.User.Password(); ok {
			secrets = append(secrets, schema.NewSecret(password))
		}
	}
	if raw, err := os.ReadFile(c.secretIDFile); err == nil {
		secrets = append(secrets, schema.NewSecret(strings.TrimSpace(string(raw))))
	}
	return secrets
}

// faults gathers what is wrong with a configuration.
type faults []string

func (f *faults) add(bad bool, format string, args ...any) {
	if bad {
		*f = append(*f, fmt.Sprintf(format, args...))
	}
}

// secret reads a variable, or the file that its _FILE sibling names.
func (f *faults) secret(name string, getenv func(string) string) string {
	if v := getenv(name); v != "" {
		return v
	}
	if getenv(name+"_FILE") == "" {
		f.add(true, "%s or %s_FILE is not set", name, name)
		return ""
	}
	return f.file(name+"_FILE", getenv(name+"_FILE"))
}

// file reads a one-line file named by a variable.
func (f *faults) file(name, path string) string {
	if path == "" {
		f.add(true, "%s is not set", name)
		return ""
	}
	raw, err := os.ReadFile(path)
	f.add(err != nil, "%s: %v", name, err)
	text := strings.TrimSpace(string(raw))
	f.add(err == nil && text == "", "%s: the file is empty", name)
	return text
}

func (f *faults) address(name, value string) {
	_, port, err := net.SplitHostPort(value)
	f.add(err != nil || port == "", "%s must read host:port", name)
}

// rate reads a number of events a second.
func (f *faults) rate(name, value string) float64 {
	if value == "" {
		return nodeapi.DefaultIssueRate
	}
	n, err := strconv.ParseFloat(value, 64)
	f.add(err != nil || !(n > 0 && n <= 1e6), "%s must be a number above 0", name)
	return n
}

func (f *faults) error() error {
	if len(*f) == 0 {
		return nil
	}
	return schema.NewError(schema.KindInvalidRequest, "configuration: %s", strings.Join(*f, "; ")).
		WithNext("gpuaas-api --help lists the variables; gpuaas dev env prints a working set for this machine")
}
