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

// agentPackage is the location of the node agent's package: a registry when a
// reference is set, else a local archive that the node API serves.
type agentPackage struct {
	ociRef, digest string
	pullTokenFile  string
	archive        string
	size           int64
}

// agentPackage checks the settings of the agent package. It reads the archive
// once, for its digest.
func (c *config) agentPackage(f *daemon.Faults) agentPackage {
	p := agentPackage{ociRef: c.AgentOCIRef, digest: c.AgentDigest, pullTokenFile: c.AgentPullTokenFile, archive: c.AgentArchive}
	if p.ociRef != "" {
		f.Check(!ociRefForm.MatchString(p.ociRef), "GPUAAS_AGENT_OCI_REF must be registry/repository@sha256:digest")
		_, ofRef, _ := strings.Cut(p.ociRef, "@")
		p.digest, p.archive = cmp.Or(p.digest, ofRef), ""
		f.Check(!digestForm.MatchString(p.digest), "GPUAAS_AGENT_DIGEST must be sha256: and 64 hex digits")
		return p
	}
	if p.archive == "" {
		return agentPackage{}
	}
	digest, size, err := digestOf(p.archive)
	f.Check(err != nil, "GPUAAS_AGENT_ARCHIVE: %v", err)
	f.Check(err == nil && p.digest != "" && p.digest != digest, "GPUAAS_AGENT_ARCHIVE has digest %s, not GPUAAS_AGENT_DIGEST", digest)
	p.digest, p.size = digest, size
	return p
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

// source returns the function for adminapi.Config.Package, nil when no package is
// configured. It reads the pull credential for each bundle, since credentials are
// short-lived.
func (p agentPackage) source(nodeURL string) func() (*trust.AgentPackage, error) {
	if p.digest == "" {
		return nil
	}
	out := trust.AgentPackage{OCIRef: p.ociRef, Digest: p.digest, PullDeliveryMode: adminapi.DeliverRegistry,
		InstallRoot: trust.DefaultInstallRoot, EnvFilePath: trust.DefaultEnvFile, SystemdUnitName: trust.DefaultSystemdUnit}
	if p.archive != "" {
		out.PullDeliveryMode, out.OCIRef = adminapi.DeliverArchive, nodeURL+"/internal/v1/packages/"+p.digest
	}
	return func() (*trust.AgentPackage, error) {
		fresh := out
		if p.pullTokenFile == "" || p.archive != "" {
			return &fresh, nil
		}
		text, err := os.ReadFile(p.pullTokenFile)
		if err != nil {
			return nil, schema.Wrap(schema.KindServiceUnavailable, err, "reading the registry's pull credential")
		}
		if fresh.PullToken = strings.TrimSpace(string(text)); !pullForm.MatchString(fresh.PullToken) {
			return nil, schema.NewError(schema.KindServiceUnavailable, "the registry's pull credential is not a bearer token")
		}
		return &fresh, nil
	}
}

// served returns the value for nodeapi.Config.Packages.
func (p agentPackage) served() map[string]nodeapi.Package {
	if p.archive == "" {
		return nil
	}
	return map[string]nodeapi.Package{p.digest: {Path: p.archive, Size: p.size}}
}
