package identity

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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func newPair(t *testing.T, ca agenttest.Authority, id trust.Identity) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return append(ca.Node(t, id, &key.PublicKey, time.Time{}), ca.PEM...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func TestCheckIssuer(t *testing.T) {
	t.Parallel()
	ca, other := agenttest.NewAuthority(t, "node ca"), agenttest.NewAuthority(t, "next node ca")
	certPEM, keyPEM := newPair(t, ca, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1})
	id, err := parseIdentity(certPEM, keyPEM)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, id.checkIssuer(path))
	require.NoError(t, os.WriteFile(path, other.PEM, 0o600))
	require.ErrorContains(t, id.checkIssuer(path), "node ca")
	require.NoError(t, os.WriteFile(path, append(other.PEM, ca.PEM...), 0o600))
	require.NoError(t, id.checkIssuer(path))
}

func TestCheckIssuerBackdatedCertificate(t *testing.T) {
	t.Parallel()
	ca := agenttest.NewAuthority(t, "fresh node ca")
	key, err := newStagedKey()
	require.NoError(t, err)
	csr, err := agenttest.ReadCSR(key.CSR)
	require.NoError(t, err)
	id := trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	text := ca.NodeFrom(t, id, csr.PublicKey, ca.Cert.NotBefore.Add(-5*time.Minute), time.Now().Add(time.Hour))
	parsed, err := parseIdentity(text, []byte(key.Key))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, os.WriteFile(path, ca.PEM, 0o600))
	require.NoError(t, parsed.checkIssuer(path))
}
