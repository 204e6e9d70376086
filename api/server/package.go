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
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

var (
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	ociRefForm = regexp.MustCompile(`^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)+@sha256:[0-9a-f]{64}$`)
	pullForm   = regexp.MustCompile(`^[A-Za-z0-9._~+/=-]*$`)
)

// agentPackage is where the node agent's package is: the registry's when a
// reference is set, else a local archive that the node API serves.
type agentPackage struct {
	ociRef, digest string
	pullTokenFile  string
	archive        string
	size           int64
}

// agentPackage reads and checks the package's variables. The archive is read
// once, for its digest.
func (f faults) agentPackage(getenv func(string) string) agentPackage {
	p := agentPackage{ociRef: getenv("GPUAAS_AGENT_OCI_REF"), digest: getenv("GPUAAS_AGENT_DIGEST"),
		pullTokenFile: getenv("GPUAAS_AGENT_PULL_TOKEN_FILE"), archive: getenv("GPUAAS_AGENT_ARCHIVE")}
	if p.ociRef != "" {
		f.Check(!ociRefForm.MatchString(p.ociRef), "GPUAAS_AGENT_OCI_REF must read registry/repository@sha256:digest")
		_, ofRef, _ := strings.Cut(p.ociRef, "@")
		p.digest, p.archive = cmp.Or(p.digest, ofRef), ""
		f.Check(!digestForm.MatchString(p.digest), "GPUAAS_AGENT_DIGEST must read sha256: and 64 hex digits")
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
	defer func() { _ = file.Close() }() // it was only read
	sum := sha256.New()
	size, err = io.Copy(sum, file)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), size, err
}

// source is what adminapi.Config.Package wants; nil without a package. The pull
// credential is read anew for each bundle, since it lives shortly.
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
			return nil, schema.Errorf(schema.KindServiceUnavailable, "the registry's pull credential is no bearer token")
		}
		return &fresh, nil
	}
}

// served is what nodeapi.Config.Packages wants.
func (p agentPackage) served() map[string]nodeapi.Package {
	if p.archive == "" {
		return nil
	}
	return map[string]nodeapi.Package{p.digest: {Path: p.archive, Size: p.size}}
}
