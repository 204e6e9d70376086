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
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Names of the objects that Setup creates. One Vault, or one of its namespaces,
// serves one environment, so only names that are used outside of Vault contain the
// environment's name.
const (
	nodeMount     = "pki-node"     // the node CA: signs node certificates
	apiMount      = "pki-api"      // the CA of the API's server certificate
	transitMount  = "transit"      // the task-signing key and the root of verifier sets
	providerMount = "kv-providers" // the credentials of providers of machines
	loginMount    = "approle"

	nodeRole      = "node"
	apiRole       = "api"
	workerName    = "gpuaas-worker"     // AppRole and policy of the worker
	apiName       = "gpuaas-api"        // AppRole and policy of the API
	trustName     = "gpuaas-trust"      // AppRole and policy of the rotator
	setsName      = "gpuaas-sets"       // policy for signing verifier sets; no AppRole has it
	secretIDsName = "gpuaas-secret-ids" // policy for RotateSecretIDs; no AppRole has it

	workerAccount = "gpuaas-worker" // service account of workers
	trustAccount  = "gpuaas-trust"  // service account of workers that are the rotator, too
	apiAccount    = "gpuaas-api"    // service account of the API

	// maasProvider is the provider whose credential the worker may read, and the name of its secret.
	// credentialField is the field that has the credential.
	maasProvider    = "maas"
	credentialField = "api_key"

	// firstIssuer names the first generation of a CA. Vault rejects a second
	// issuer of the same name, so two concurrent setups create one CA.
	firstIssuer = "g1"
)

// Lifetimes of certificates and tokens.
const (
	caTTL         = 10 * 365 * 24 * time.Hour
	nodeCertTTL   = trust.CertTTL
	serverCertTTL = 30 * 24 * time.Hour
	// backdate covers slow clocks: a certificate is valid from this long before
	// its creation.
	backdate = trust.ClockSkew
	// tokenTTL and tokenMaxTTL limit a login's token: it is renewed every tokenTTL
	// at the latest, and replaced before tokenMaxTTL.
	tokenTTL    = time.Hour
	tokenMaxTTL = 24 * time.Hour
)

// taskKey is the transit key that signs an environment's tasks.
func taskKey(env string) string { return "task-" + env }

// rootKey is the transit key that signs an environment's verifier sets.
func rootKey(env string) string { return "set-root-" + env }

// checkpointKeyName is the transit key that signs checkpoints of an environment's audit trail.
func checkpointKeyName(env string) string { return "audit-" + env }

// keyID is the ID of a transit key's version in verifier sets and envelopes.
func keyID(name string, version int) string { return fmt.Sprintf("%s.v%d", name, version) }

// versionOf is the inverse of keyID for a known key. It returns false for the ID
// of another key.
func versionOf(name, id string) (version int, ok bool) {
	text, ok := strings.CutPrefix(id, name+".v")
	version, err := strconv.Atoi(text)
	return version, ok && err == nil && version > 0 && keyID(name, version) == id
}

// nodeURIs is the glob of the identities for which the node role signs.
func nodeURIs(env string) string { return "spiffe://" + env + "/node/*" }

// nodeCAName is the common name of a generation of the node CA.
func nodeCAName(env string, generation int) string {
	return fmt.Sprintf("gpuaas %s node CA G%d", env, generation)
}

// checkEnv rejects a name that is not valid in a path, a key ID and a trust
// domain.
func checkEnv(env string) error {
	if !trust.ValidEnv(env) {
		return schema.NewError(schema.KindInvalidRequest,
			"environment name %q: want at most 40 lower-case letters, digits, dots and hyphens", env)
	}
	return nil
}

// splitNames splits server names into lower-case DNS names and IP addresses, both
// sorted and without duplicates.
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
			return nil, nil, schema.NewError(schema.KindInvalidRequest,
				"API name %q: want a DNS name without a wildcard, or an IP address", n)
		}
	}
	if len(dns)+len(ips) == 0 {
		return nil, nil, schema.NewError(schema.KindInvalidRequest, "the API needs at least one DNS name or IP address")
	}
	slices.Sort(dns)
	slices.Sort(ips)
	return slices.Compact(dns), slices.Compact(ips), nil
}
