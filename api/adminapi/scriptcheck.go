package adminapi

import (
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Bounds of the values of a script, far above those of any installation.
const (
	maxScriptURL   = 2048
	maxScriptPath  = 255
	maxScriptToken = 16 << 10
	maxScriptPEM   = 256 << 10
)

// checkScriptHost rejects a node without a valid id or host name. Registration rejects
// such a host, but its row may be older than that check. The next step does not contain
// the ID, because the CLI replaces an ID there by the host.
func checkScriptHost(host, nodeID string) error {
	if !schema.IsID(nodeID) {
		return schema.NewError(schema.KindInternal, "the node's id is not a UUID").WithReason("bad_bundle")
	}
	if !validHost(host) {
		return schema.NewError(schema.KindInvalidRequest, "node %s is registered with a host that is neither a host name nor an IP address, so it gets no token and no script",
			nodeID).WithReason("bad_host").WithNext("remove the node by its ID, then register it with a valid host")
	}
	return nil
}

// checkScript rejects a script with a value that a script, curl's settings, an env file
// or a systemd unit could read as anything but a value. The error names the value and
// does not repeat it, since it may be a secret. A value may be empty.
func checkScript(s script) error {
	for _, v := range []struct {
		name, value string
		valid       func(string) bool
	}{
		{"GPUAAS_ENROLLMENT_TOKEN", s.EnrollmentToken, token(maxScriptToken, "._-")},
		{"reference", s.Reference, token(maxScriptToken, "._-")},
		{"expires_at", s.ExpiresAt, token(64, ":.+-")},
		{"GPUAAS_API_URL", s.APIURL, isScriptURL},
		{"GPUAAS_ENV", s.Env, trust.ValidEnv},
		{"GPUAAS_WORKLOAD_DRIVER", s.WorkloadDriver, validDriver},
		{"GPUAAS_TASK_SIGNING_PUBKEYS", s.TaskSigningPubkeys, token(maxScriptToken, ":+/=,._-")},
		{"GPUAAS_RELEASE_PUBKEYS", s.ReleasePubkeys, token(maxScriptToken, "+/=,")},
		{"GPUAAS_CA_BUNDLE_PATH", s.CABundlePath, isScriptPath},
		{"GPUAAS_NODE_CERT_CA_BUNDLE_PATH", s.NodeCertCABundlePath, isScriptPath},
		{"GPUAAS_CERT_PATH", s.CertPath, isScriptPath},
		{"GPUAAS_KEY_PATH", s.KeyPath, isScriptPath},
		{"ca_bundle_pem", s.CABundlePEM, isScriptPEM},
		{"node_cert_ca_bundle_pem", s.NodeCertCABundlePEM, isScriptPEM},
		{"package URL", s.PackageURL(), isScriptURL},
		{"digest", s.Package.Digest, isDigest},
		{"pull_token", s.Package.PullToken, token(maxScriptToken, "._~+/=-")},
		{"install_root", s.Package.InstallRoot, isScriptPath},
		{"env_file_path", s.Package.EnvFilePath, isScriptPath},
		{"systemd_unit_name", s.Package.SystemdUnitName, token(maxScriptPath, ":_.@-")},
	} {
		if v.value != "" && !v.valid(v.value) {
			return schema.NewError(schema.KindInternal, "the bundle's %s is too long or contains characters that no script may contain", v.name).
				WithReason("bad_bundle")
		}
	}
	return nil
}

func token(limit int, punctuation string) func(string) bool {
	return func(s string) bool { return text.IsToken(s, limit, punctuation) }
}

func isScriptURL(s string) bool {
	return strings.HasPrefix(s, "https://") && text.IsToken(s, maxScriptURL, ":/._~@-")
}

func isScriptPath(s string) bool {
	return strings.HasPrefix(s, "/") && text.IsToken(s, maxScriptPath, "/._@+-")
}

func isScriptPEM(s string) bool {
	return text.IsPrintable(strings.ReplaceAll(s, "\n", ""), maxScriptPEM)
}

func isDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, "sha256:")
	return ok && text.IsSHA256Hex(hex)
}
