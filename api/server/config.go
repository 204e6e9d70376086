package server

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// minTokenLength rejects admin tokens that are easy to guess.
const minTokenLength = 16

// config is the program's configuration.
type config struct {
	daemon.Common
	daemon.Engines
	NodeDatabaseURL    schema.Secret `env:"GPUAAS_NODE_DATABASE_URL" help:"Postgres connection URL for the node API and the relay, with the role gpuaas_api_node; GPUAAS_DATABASE_URL then needs only gpuaas_api_admin. Default: GPUAAS_DATABASE_URL."`
	AdminToken         schema.Secret `env:"GPUAAS_ADMIN_TOKEN" help:"Bearer token of the admin API with the role admin, at least 16 characters. It or GPUAAS_ADMIN_TOKENS_FILE is required."`
	AdminActor         string        `env:"GPUAAS_ADMIN_ACTOR" envDefault:"admin-token" help:"Subject that the admin token stands for in the audit trail."`
	AdminTokensFile    string        `env:"GPUAAS_ADMIN_TOKENS_FILE" help:"File with the tokens of named subjects, one NAME ROLE SHA256 per line (gpuaas admin token new makes one). Only its owner may have write access. It is read again when it changes."`
	AdminAddr          string        `env:"GPUAAS_ADMIN_ADDR" envDefault:"127.0.0.1:8081" help:"Listen address of the admin API."`
	ConsoleURL         string        `env:"GPUAAS_CONSOLE_URL" help:"Public URL of the operator console without a path, for example https://console.example.com. Requests for other host names are refused, and with https the session's cookie is sent only over TLS. Default: the admin API's port on localhost, over http."`
	NodeAddr           string        `env:"GPUAAS_NODE_ADDR" envDefault:"127.0.0.1:8443" help:"Listen address of the node API."`
	NodeURL            string        `env:"GPUAAS_NODE_PUBLIC_URL" envDefault:"https://localhost:8443" help:"URL at which nodes reach the node API: https://name:port. A raw IP address is rejected."`
	WebUI              string        `env:"GPUAAS_WEB_UI_URL" envDefault:"http://localhost:8233" help:"Base URL of Temporal's Web UI, for the links to operations."`
	NodeProxyNetworks  string        `env:"GPUAAS_NODE_PROXY_NETWORKS" help:"Networks of the TCP load balancers in front of the node API, as CIDRs separated by commas. Each connection from them must begin with a PROXY protocol header of version 2, which has the client's address. From all other addresses such a header is rejected. Default: none."`
	NodeConnections    int           `env:"GPUAAS_NODE_CONNECTIONS" envDefault:"16384" help:"Largest number of open connections to the node API. Half of them may be of clients that have not sent a node's certificate, an eighth from one address."`
	IssueRate          float64       `env:"GPUAAS_ISSUE_RATE" envDefault:"50" help:"Node certificates per second that this process has Vault sign. Keep the sum over all replicas below half of Vault's capacity."`
	StateDir           string        `env:"GPUAAS_STATE_DIR" help:"Directory in which the process keeps the node API's certificate and key, with mode 0600, so that it can start while Vault is unavailable. Give each replica a directory of its own. Default: none, and each start waits for Vault."`
	AgentOCIRef        string        `env:"GPUAAS_AGENT_OCI_REF" help:"Registry reference of the node agent's package: registry/repository@sha256:digest."`
	AgentDigest        string        `env:"GPUAAS_AGENT_DIGEST" help:"Digest of the package blob, where the reference is that of a manifest, or of the archive."`
	AgentPullTokenFile string        `env:"GPUAAS_AGENT_PULL_TOKEN_FILE" help:"File with a bearer token for the registry. It is read again for each bundle."`
	AgentArchive       string        `env:"GPUAAS_AGENT_ARCHIVE" help:"Node agent's package as a local file, which the node API serves. It is ignored when a registry reference is set."`
	Releases           string        `env:"GPUAAS_AGENT_RELEASES" help:"Folder with signed releases of the agent (gpuaas admin sign-agent), for gpuaas node upgrade-agent. All replicas need the same content. It is read at each use."`
	ReleaseKeys        string        `env:"GPUAAS_RELEASE_PUBKEYS" help:"Public keys of the agent's releases, separated by commas: gpuaas admin sign-agent prints that of a signature. New bundles contain them."`

	serve       listenerSet
	proxies     []netip.Prefix
	archiveSize int64
	releases    releases
	tokens      *adminapi.Tokens
}

// defaults returns a configuration with the defaults that depend on the program.
func defaults() *config {
	return &config{
		Common: daemon.Common{MetricsAddr: "127.0.0.1:9091", LameDuck: 5 * time.Second, DrainTimeout: 6 * time.Second},
		serve:  listenerSet{listenerNode, listenerAdmin, listenerConsole},
	}
}

// Check implements daemon.Load's check. It reads the tokens and the agent's package, so
// that their faults are listed with the others.
func (c *config) Check(f *daemon.Faults) {
	c.Engines.Check(f)
	f.DatabaseURL("GPUAAS_NODE_DATABASE_URL", c.NodeDatabaseURL)
	c.DatabasePlaintext(f, "GPUAAS_NODE_DATABASE_URL", c.NodeDatabaseURL)
	token := c.AdminToken.Reveal()
	f.Check(token != "" && len(token) < minTokenLength, "GPUAAS_ADMIN_TOKEN: the token is shorter than %d characters", minTokenLength)
	var shared [sha256.Size]byte // zero: no shared token
	if token != "" {
		shared = sha256.Sum256([]byte(token))
	}
	var invalid error
	c.tokens, invalid = adminapi.NewTokens(shared, c.AdminActor, c.AdminTokensFile)
	f.Check(invalid != nil, "GPUAAS_ADMIN_TOKENS_FILE: %v", invalid)
	f.Check(token == "" && c.AdminTokensFile == "", "GPUAAS_ADMIN_TOKEN or GPUAAS_ADMIN_TOKEN_FILE or GPUAAS_ADMIN_TOKENS_FILE is not set")
	f.Address("GPUAAS_ADMIN_ADDR", c.AdminAddr)
	f.Address("GPUAAS_NODE_ADDR", c.NodeAddr)
	c.NodeURL = strings.TrimRight(c.NodeURL, "/")
	c.WebUI = strings.TrimRight(c.WebUI, "/")
	web, err := url.Parse(c.WebUI)
	f.Check(err != nil || web.Scheme != "http" && web.Scheme != "https" || web.Host == "" || web.User != nil,
		"GPUAAS_WEB_UI_URL must be an http or https URL without credentials")
	invalid = trust.CheckAPIURL(c.NodeURL)
	f.Check(invalid != nil, "GPUAAS_NODE_PUBLIC_URL: %v", invalid)
	f.Check(c.NodeConnections < 100 || c.NodeConnections > 1e6, "GPUAAS_NODE_CONNECTIONS must be 100 to 1000000")
	c.checkProxies(f)
	c.checkConsole(f.Check)
	f.Check(!(c.IssueRate > 0 && c.IssueRate <= 1e6), "GPUAAS_ISSUE_RATE must be above 0 and at most 1000000")
	c.checkPackage(f)
	c.checkReleases(f)
}

// checkProxies parses the networks of load balancers.
func (c *config) checkProxies(f *daemon.Faults) {
	for text := range strings.SplitSeq(c.NodeProxyNetworks, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		f.Check(err != nil, "GPUAAS_NODE_PROXY_NETWORKS: %q is not a CIDR, for example 192.0.2.0/24", text)
		f.Check(err == nil && p.Bits() == 0, "GPUAAS_NODE_PROXY_NETWORKS: %s is every address; list only the load balancers", text)
		c.proxies = append(c.proxies, p.Masked())
	}
}

// nodeHost returns the name by which nodes know the node API.
func (c *config) nodeHost() string {
	u, err := url.Parse(c.NodeURL)
	if err != nil {
		return "" // Check rejected it
	}
	return u.Hostname()
}

// secrets returns what Temporal must never receive from this process.
func (c *config) secrets() []schema.Secret {
	return append(append(c.Engines.Secrets(), c.AdminToken), daemon.DatabasePassword(c.NodeDatabaseURL)...)
}

// The listeners that --serve selects.
const (
	listenerNode  = "node"
	listenerAdmin = "admin"
	// listenerConsole is the console, on the listener of the admin API.
	listenerConsole = "console"
)

// listenerSet is the value of --serve. It implements flag.Value.
type listenerSet []string

// String returns the names separated by commas.
func (s *listenerSet) String() string { return strings.Join(*s, ",") }

// Set parses names separated by commas.
func (s *listenerSet) Set(text string) error {
	var out listenerSet
	for name := range strings.SplitSeq(text, ",") {
		if name != listenerNode && name != listenerAdmin && name != listenerConsole {
			return fmt.Errorf("unknown listener %q: use %s, %s and %s", name, listenerNode, listenerAdmin, listenerConsole)
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	*s = out
	return nil
}

func (s listenerSet) has(name string) bool { return slices.Contains(s, name) }
