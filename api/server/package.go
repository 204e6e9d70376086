package server

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

var (
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	ociRefForm = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64}$`)
	pullForm   = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]*$`)
)

// checkPackage checks the settings of the node agent's package, which is in a registry
// if a reference is set, or else a local archive that the node API serves. It reads the
// archive once, and sets the digest.
func (c *config) checkPackage(f *daemon.Faults) {
	switch {
	case c.AgentOCIRef != "":
		f.Check(!ociRefForm.MatchString(c.AgentOCIRef), "GPUAAS_AGENT_OCI_REF must be registry/repository@sha256:digest")
		_, ofRef, _ := strings.Cut(c.AgentOCIRef, "@")
		c.AgentDigest, c.AgentArchive = cmp.Or(c.AgentDigest, ofRef), ""
		f.Check(!digestForm.MatchString(c.AgentDigest), "GPUAAS_AGENT_DIGEST must be sha256: and 64 hex digits")
	case c.AgentArchive == "":
		c.AgentDigest = ""
	default:
		digest, size, err := digestOf(c.AgentArchive)
		f.Check(err != nil, "GPUAAS_AGENT_ARCHIVE: %v", err)
		f.Check(err == nil && c.AgentDigest != "" && c.AgentDigest != digest, "GPUAAS_AGENT_ARCHIVE has digest %s, not GPUAAS_AGENT_DIGEST", digest)
		c.AgentDigest, c.archiveSize = digest, size
	}
}

func digestOf(path string) (digest string, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = file.Close() }() // it is open for reading only
	sum := sha256.New()
	size, err = io.Copy(sum, file)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, err
}

// packageSource returns the function for adminapi.Config.Package, nil when no package
// is configured. It reads the pull credential for each bundle, since credentials are
// short-lived.
func (c *config) packageSource() func() (*trust.AgentPackage, error) {
	if c.AgentDigest == "" {
		return nil
	}
	out := trust.AgentPackage{OCIRef: c.AgentOCIRef, Digest: c.AgentDigest, PullDeliveryMode: adminapi.DeliverRegistry,
		InstallRoot: trust.DefaultInstallRoot, EnvFilePath: trust.DefaultEnvFile, SystemdUnitName: trust.DefaultSystemdUnit}
	if c.AgentArchive != "" {
		out.PullDeliveryMode, out.OCIRef = adminapi.DeliverArchive, c.NodeURL+"/internal/v1/packages/"+c.AgentDigest
	}
	return func() (*trust.AgentPackage, error) {
		fresh := out
		if c.AgentPullTokenFile == "" || c.AgentArchive != "" {
			return &fresh, nil
		}
		text, err := os.ReadFile(c.AgentPullTokenFile)
		if err != nil {
			return nil, schema.Wrap(schema.KindServiceUnavailable, err, "reading the registry's pull credential")
		}
		if fresh.PullToken = strings.TrimSpace(string(text)); !pullForm.MatchString(fresh.PullToken) {
			return nil, schema.NewError(schema.KindServiceUnavailable, "the registry's pull credential is not a bearer token")
		}
		return &fresh, nil
	}
}

// packages returns the value for nodeapi.Config.Packages.
func (c *config) packages() map[string]nodeapi.Package {
	if c.AgentArchive == "" {
		return nil
	}
	return map[string]nodeapi.Package{c.AgentDigest: {Path: c.AgentArchive, Size: c.archiveSize}}
}
