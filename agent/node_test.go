package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// memoryFolder is a folder for a sweep of many cases. It is in memory where the system
// has a file system there, because making files is most of the cost of a case.
func memoryFolder(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpuaas-agent-test-") //nolint:usetesting // TempDir is on disk
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(dir)) })
	return dir
}

// configFor is a node's configuration in a folder of its own.
func configFor(f *agenttest.API) Config { return configIn(f, f.T.TempDir()) }

func configIn(f *agenttest.API, dir string) Config {
	f.T.Helper()
	token, _, _ := trust.NewToken()
	c := configOf(map[string]string{
		"GPUAAS_NODE_ID": f.ID.NodeID, "GPUAAS_API_URL": f.URL(), "GPUAAS_ENROLLMENT_TOKEN": token,
		"GPUAAS_TASK_SIGNING_PUBKEYS": f.Trust().String(), "GPUAAS_ENV": f.ID.Env,
		"GPUAAS_CA_BUNDLE_PATH":           filepath.Join(dir, "ca.crt"),
		"GPUAAS_NODE_CERT_CA_BUNDLE_PATH": filepath.Join(dir, "node-ca.crt"),
		"GPUAAS_CERT_PATH":                filepath.Join(dir, "cert.pem"), "GPUAAS_KEY_PATH": filepath.Join(dir, "key.pem"),
		"GPUAAS_STATE_DIR": filepath.Join(dir, "state"), "GPUAAS_WORKLOAD_DRIVER": devworkload.Name,
		"GPUAAS_HEALTH_CHECKS": "none", // of the machine that runs the tests
	}, "")
	c.Drivers = devworkload.Drivers()
	require.NoError(f.T, os.WriteFile(c.CABundlePath, f.Server.PEM, 0o600))
	require.NoError(f.T, os.WriteFile(c.NodeCABundlePath, f.Nodes.PEM, 0o600))
	require.NoError(f.T, c.Validate())
	killLeftovers(f.T, c)
	return c
}

// install gives the node an identity as if it had enrolled, without a recovery token.
// The configured token counts as used, and may pay for another enrollment.
func install(f *agenttest.API, c Config, id trust.Identity, notAfter time.Time) {
	f.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f.T, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(f.T, err)
	state := disk.At(c.StateDir)
	require.NoError(f.T, state.Ensure("identity"))
	seen := schema.SHA256Hex([]byte("gpuaas agent token\n" + c.EnrollmentToken.Reveal()))
	require.NoError(f.T, state.WriteJSON(state.File("identity.json"), map[string]string{"seen": seen}))
	require.NoError(f.T, state.WriteJSON(versionPath(c, 1), identity.Meta{
		Certificate: string(f.Nodes.Node(f.T, id, &key.PublicKey, notAfter)), Chain: string(f.Nodes.PEM),
		Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), Via: trust.IssuedByEnroll,
	}))
}
