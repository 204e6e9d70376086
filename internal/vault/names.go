package vault

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// What Setup makes, by name. One Vault, or one namespace of it, serves one
// environment, so only what leaves Vault carries the environment's name.
const (
	nodeMount    = "pki-node" // the node CA: signs node certificates
	apiMount     = "pki-api"  // the CA of the API's server certificate
	transitMount = "transit"  // the task-signing key and the root of verifier sets
	loginMount   = "approle"

	nodeRole   = "node"
	apiRole    = "api"
	workerName = "gpuaas-worker" // AppRole and policy of the worker
	apiName    = "gpuaas-api"    // AppRole and policy of the API
	setsName   = "gpuaas-sets"   // policy of whoever signs verifier sets; no AppRole has it

	// firstIssuer names the first generation of a CA. Vault refuses a second
	// issuer of the same name, so two setups at once make one CA.
	firstIssuer = "g1"
)

// Lives of what is issued.
const (
	caTTL         = 10 * 365 * 24 * time.Hour
	nodeCertTTL   = 72 * time.Hour
	serverCertTTL = 30 * 24 * time.Hour
	// backdate covers clocks that run behind: a certificate is valid from this
	// long before it was made.
	backdate = 5 * time.Minute
	// tokenTTL and tokenMaxTTL bound a login: renewed until its end, made anew
	// after it.
	tokenTTL    = time.Hour
	tokenMaxTTL = 24 * time.Hour
)

// taskKey is the transit key that signs an environment's tasks.
func taskKey(env string) string { return "task-" + env }

// rootKey is the transit key that signs an environment's verifier sets.
func rootKey(env string) string { return "set-root-" + env }

// keyID is a version of a transit key as verifier sets and envelopes name it.
func keyID(name string, version int) string { return fmt.Sprintf("%s.v%d", name, version) }

// versionOf is the reverse of keyID for a known key; false for another's id.
func versionOf(name, id string) (version int, ok bool) {
	text, ok := strings.CutPrefix(id, name+".v")
	version, err := strconv.Atoi(text)
	return version, ok && err == nil && version > 0 && keyID(name, version) == id
}

// nodeURIs is the glob of the identities the node role signs for.
func nodeURIs(env string) string { return "spiffe://" + env + "/node/*" }

// nodeCAName and apiCAName are the CAs' subjects. Each generation has its own: a
// client offers no certificate to a server that does not name its issuer, so a
// twin with the same name would hide which one is meant.
func nodeCAName(env string) string { return "gpuaas " + env + " node CA G1" }

func apiCAName(env string) string { return "gpuaas " + env + " API CA G1" }

// checkEnv refuses a name that could not stand in a path, a key id and a trust
// domain alike.
func checkEnv(env string) error {
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,38}[a-z0-9])?$`).MatchString(env) {
		return schema.Errorf(schema.KindInvalidRequest,
			"environment name %q: want lower-case letters, digits, dots and dashes, at most 40", env)
	}
	return nil
}

// splitNames sorts server names into DNS names, in lower case, and IP addresses,
// each without repeats and in order.
func splitNames(names []string) (dns, ips []string, err error) {
	label := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	for _, n := range names {
		n = strings.ToLower(strings.TrimSpace(n))
		ip := net.ParseIP(n)
		switch {
		case ip != nil:
			ips = append(ips, ip.String())
		case len(n) <= 253 && label.MatchString(n):
			dns = append(dns, n)
		default:
			return nil, nil, schema.Errorf(schema.KindInvalidRequest,
				"API name %q: want a DNS name without wildcard, or an IP address", n)
		}
	}
	if len(dns)+len(ips) == 0 {
		return nil, nil, schema.Errorf(schema.KindInvalidRequest, "the API needs at least one DNS name or IP address")
	}
	slices.Sort(dns)
	slices.Sort(ips)
	return slices.Compact(dns), slices.Compact(ips), nil
}
