package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/agenttest"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// configFor is a node's configuration in a folder of its own.
func configFor(f *agenttest.API) Config {
	f.T.Helper()
	dir := f.T.TempDir()
	token, _, _ := trust.NewToken()
	c := configOf(map[string]string{
		"GPUAAS_NODE_ID": f.ID.NodeID, "GPUAAS_API_URL": f.URL(), "GPUAAS_ENROLLMENT_TOKEN": token,
		"GPUAAS_TASK_SIGNING_PUBKEYS": f.Trust().String(), "GPUAAS_ENV": f.ID.Env,
		"GPUAAS_CA_BUNDLE_PATH":           filepath.Join(dir, "ca.crt"),
		"GPUAAS_NODE_CERT_CA_BUNDLE_PATH": filepath.Join(dir, "node-ca.crt"),
		"GPUAAS_CERT_PATH":                filepath.Join(dir, "cert.pem"), "GPUAAS_KEY_PATH": filepath.Join(dir, "key.pem"),
		"GPUAAS_STATE_DIR": filepath.Join(dir, "state"), "GPUAAS_WORKLOAD_DRIVER": devworkload.Name,
	}, "")
	c.Drivers = map[string]Driver{devworkload.Name: processDriver}
	require.NoError(f.T, os.WriteFile(c.CABundlePath, f.Server.PEM, 0o600))
	require.NoError(f.T, os.WriteFile(c.NodeCABundlePath, f.Nodes.PEM, 0o600))
	require.NoError(f.T, c.Validate())
	killLeftovers(f.T, c)
	return c
}

// install gives the node an identity as if it had enrolled.
func install(f *agenttest.API, c Config, id trust.Identity, notAfter time.Time) {
	f.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f.T, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(f.T, err)
	require.NoError(f.T, os.WriteFile(c.CertPath, f.Nodes.Node(f.T, id, &key.PublicKey, notAfter), 0o600))
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	require.NoError(f.T, os.WriteFile(c.KeyPath, keyPEM, 0o600))
}
