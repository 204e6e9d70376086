package server

import (
	"cmp"
	"crypto/sha256"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/settings"
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
	// tokenHash is the SHA-256 of the token in GPUAAS_ADMIN_TOKEN_FILE, and actor
	// its subject: GPUAAS_ADMIN_ACTOR. Defaults to admin-token.
	tokenHash [sha256.Size]byte
	actor     string
	// tokensFile holds more tokens with their subjects and roles:
	// GPUAAS_ADMIN_TOKENS_FILE. Defaults to none.
	tokensFile string
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
  GPUAAS_ADMIN_ACTOR       (admin-token)           its subject, named by the audit
  GPUAAS_ADMIN_TOKENS_FILE more tokens, a line each: NAME ROLE SHA256 (gpuaas admin
                           token new makes one); read again when it changes
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
		adminAddr:   cmp.Or(getenv("GPUAAS_ADMIN_ADDR"), "127.0.0.1:8081"),
		nodeAddr:    cmp.Or(getenv("GPUAAS_NODE_ADDR"), "127.0.0.1:8443"),
		nodeURL:     strings.TrimRight(cmp.Or(getenv("GPUAAS_NODE_PUBLIC_URL"), "https://localhost:8443"), "/"),
		metricsAddr: cmp.Or(getenv("GPUAAS_METRICS_ADDR"), "127.0.0.1:9091"),
		actor:       cmp.Or(getenv("GPUAAS_ADMIN_ACTOR"), "admin-token"),
		tokensFile:  getenv("GPUAAS_ADMIN_TOKENS_FILE"),
		env:         cmp.Or(getenv("GPUAAS_ENV"), "dev"),
	}
	f := faults{settings.From(getenv)}
	c.databaseURL = f.Secret("GPUAAS_DATABASE_URL")
	token := f.File("GPUAAS_ADMIN_TOKEN_FILE")
	c.tokenHash = sha256.Sum256([]byte(token))
	f.Check(token != "" && len(token) < minTokenLength, "GPUAAS_ADMIN_TOKEN_FILE: the token is shorter than %d characters", minTokenLength)
	c.vaultAddr = f.Need("VAULT_ADDR")
	c.roleIDFile = f.Need("GPUAAS_VAULT_ROLE_ID_FILE")
	c.secretIDFile = f.Need("GPUAAS_VAULT_SECRET_ID_FILE")
	f.address("GPUAAS_ADMIN_ADDR", c.adminAddr)
	f.address("GPUAAS_NODE_ADDR", c.nodeAddr)
	f.address("GPUAAS_METRICS_ADDR", c.metricsAddr)
	u, err := url.Parse(c.nodeURL)
	f.Check(err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "",
		"GPUAAS_NODE_PUBLIC_URL must read https://host:port")
	f.Check(!envName.MatchString(c.env), "GPUAAS_ENV must be 1 to 40 of a-z 0-9 . -")
	c.issueRate = f.rate("GPUAAS_ISSUE_RATE", getenv("GPUAAS_ISSUE_RATE"))
	c.agent = f.agentPackage(getenv)
	c.logLevel = f.LogLevel()
	c.secrets = append([]schema.Secret{schema.NewSecret(token)}, settings.Secrets(c.databaseURL, c.secretIDFile)...)
	return c, f.Err("gpuaas-api --help lists the variables; gpuaas dev env prints a working set for this machine")
}

// faults checks what only the API is told.
type faults struct{ *settings.Reader }

func (f faults) address(name, value string) {
	_, port, err := net.SplitHostPort(value)
	f.Check(err != nil || port == "", "%s must read host:port", name)
}

// rate reads a number of events a second.
func (f faults) rate(name, value string) float64 {
	if value == "" {
		return nodeapi.DefaultIssueRate
	}
	n, err := strconv.ParseFloat(value, 64)
	f.Check(err != nil || !(n > 0 && n <= 1e6), "%s must be a number above 0", name)
	return n
}
