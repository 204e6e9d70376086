package trust

import (
	"encoding/pem"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// BootstrapBundle contains everything that a node needs to enroll. It includes
// the enrollment token: a file that holds it has mode 0600, and the bundle never
// enters Temporal or a log.
type BootstrapBundle struct {
	NodeID          string `json:"GPUAAS_NODE_ID"`
	EnrollmentToken string `json:"GPUAAS_ENROLLMENT_TOKEN"`
	APIURL          string `json:"GPUAAS_API_URL"`
	// TaskSigningPubkeys is a TaskTrust in its text form.
	TaskSigningPubkeys   string `json:"GPUAAS_TASK_SIGNING_PUBKEYS"`
	CABundlePath         string `json:"GPUAAS_CA_BUNDLE_PATH"`
	NodeCertCABundlePath string `json:"GPUAAS_NODE_CERT_CA_BUNDLE_PATH"`
	CertPath             string `json:"GPUAAS_CERT_PATH"`
	KeyPath              string `json:"GPUAAS_KEY_PATH"`
	Env                  string `json:"GPUAAS_ENV"`
	// WorkloadDriver is empty if the node was registered without one: a driver that is
	// configured on the node then stays.
	WorkloadDriver string `json:"GPUAAS_WORKLOAD_DRIVER,omitempty"`
	// ReleasePubkeys verify releases of the agent (ParseReleaseKeys); empty if there are none.
	ReleasePubkeys string `json:"GPUAAS_RELEASE_PUBKEYS,omitempty"`
	// CABundlePEM verifies the node API's server certificate; its fingerprint
	// is the hex SHA-256 of the first certificate's DER.
	CABundlePEM         string `json:"ca_bundle_pem"`
	CABundleFingerprint string `json:"ca_bundle_fingerprint"`
	// NodeCertCABundlePEM verifies node certificates.
	NodeCertCABundlePEM string `json:"node_cert_ca_bundle_pem"`
	ExpiresAt           string `json:"expires_at"` // RFC 3339; when the token expires
	// Package locates the agent's package; nil if none is configured.
	Package *AgentPackage `json:"package,omitempty"`
}

// AgentPackage locates the agent's install package and carries the short-lived
// credential to pull it. The admin API builds and returns a bundle in one call, so
// that none of this enters a workflow's input or history.
type AgentPackage struct {
	// OCIRef is repository@sha256:… in the registry, or the archive's URL at the
	// node API if no registry is configured.
	OCIRef string `json:"oci_ref"`
	// Digest is sha256:… of the archive. The installer rejects any other digest.
	Digest string `json:"digest"`
	// PullDeliveryMode is registry or archive.
	PullDeliveryMode string `json:"pull_delivery_mode"`
	// PullToken is a short-lived bearer credential for the registry, if it needs
	// one: the content of GPUAAS_AGENT_PULL_TOKEN_FILE of gpuaas-api when the
	// bundle is made. It is as secret as the enrollment token.
	PullToken       string `json:"pull_token,omitempty"`
	InstallRoot     string `json:"install_root"`
	EnvFilePath     string `json:"env_file_path"`
	SystemdUnitName string `json:"systemd_unit_name"`
}

// TrustResult is the output of agent.update_trust: the verifier set that the node
// now uses and the CA bundles that it accepted. Version 0 is the set of the
// node's bundle.
type TrustResult struct {
	SetVersion int64  `json:"set_version"`
	SetHash    string `json:"set_hash,omitempty"`
	// The fingerprints are those of NodeTrust.
	CABundleFingerprint         string `json:"ca_bundle_fingerprint,omitempty"`
	NodeCertCABundleFingerprint string `json:"node_cert_ca_bundle_fingerprint,omitempty"`
}

// TrustParams are the params of agent.update_trust. Empty fields ask for nothing.
type TrustParams struct {
	// NodeCABundle is the BundleDigest of the CAs of node certificates that the node must
	// load. The agent rejects another bundle, which a replica of the API may still have.
	NodeCABundle string `json:"node_ca_bundle,omitempty"`
	// IssuerKey is the hex key ID of the CA that issues node certificates. The agent renews
	// a certificate of another CA at once.
	IssuerKey string `json:"issuer_key,omitempty"`
}

// NodeTrust is the body of a 200 response to GET trust: the current CA bundles,
// under the field names of the bootstrap bundle. A fingerprint is the hex SHA-256
// of the first certificate's DER.
type NodeTrust struct {
	// CABundlePEM verifies the node API's server certificate.
	CABundlePEM         string `json:"ca_bundle_pem"`
	CABundleFingerprint string `json:"ca_bundle_fingerprint"`
	// NodeCertCABundlePEM verifies node certificates.
	NodeCertCABundlePEM         string `json:"node_cert_ca_bundle_pem"`
	NodeCertCABundleFingerprint string `json:"node_cert_ca_bundle_fingerprint"`
}

// BootstrapRequest is the body of POST /internal/v1/bootstrap. The reference is in the body
// because proxies log URLs.
type BootstrapRequest struct {
	Reference string `json:"reference"`
}

// Curl returns the settings of curl, which it reads with --config, that send the request. It consists
// of characters that JSON and curl do not escape.
func (r BootstrapRequest) Curl() string {
	return "header = \"Content-Type: application/json\"\ndata = \"{\\\"reference\\\":\\\"" + r.Reference + "\\\"}\"\n"
}

// Default paths on a node. A bundle's values take precedence.
const (
	DefaultEnvFile          = "/etc/gpuaas/node-agent.env"
	DefaultCABundlePath     = "/etc/gpuaas/ca-bundle.crt"
	DefaultNodeCABundlePath = "/etc/gpuaas/node-cert-ca-bundle.crt"
	DefaultCertPath         = "/etc/gpuaas/cert.pem"
	DefaultKeyPath          = "/etc/gpuaas/key.pem"
	DefaultStateDir         = "/var/lib/gpuaas/node-agent"
	DefaultInstallRoot      = "/opt/gpuaas/node-agent"
	DefaultSystemdUnit      = "gpuaas-node-agent.service"
)

// EnvFile renders the bundle's variables in the form of a systemd
// EnvironmentFile, sorted by name. It holds the token.
func (b BootstrapBundle) EnvFile() string {
	vars := map[string]string{}
	for field, value := range reflect.ValueOf(b).Fields() {
		name, omit, _ := strings.Cut(field.Tag.Get("json"), ",")
		if strings.HasPrefix(name, "GPUAAS_") && (omit == "" || !value.IsZero()) {
			vars[name] = value.String()
		}
	}
	return envLines(vars)
}

// EnvFile renders the installer's variables in the same form. It returns "" for a
// nil package: the installer then uses its defaults.
func (p *AgentPackage) EnvFile() string {
	if p == nil {
		return ""
	}
	return envLines(map[string]string{
		"GPUAAS_NODE_AGENT_INSTALL_ROOT": p.InstallRoot,
		"GPUAAS_NODE_AGENT_ENV_FILE":     p.EnvFilePath,
		"GPUAAS_NODE_AGENT_SYSTEMD_UNIT": p.SystemdUnitName,
	})
}

func envLines(vars map[string]string) string {
	lines := make([]string, 0, len(vars))
	for k, v := range vars {
		lines = append(lines, fmt.Sprintf("%s=%q", k, v))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n"
}

// Fingerprint returns the hex SHA-256 of the first certificate in pemText, or ""
// if there is none.
func Fingerprint(pemText string) string {
	block, _ := pem.Decode([]byte(pemText))
	if block == nil {
		return ""
	}
	return schema.SHA256Hex(block.Bytes)
}
