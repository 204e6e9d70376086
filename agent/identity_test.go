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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func newPair(t *testing.T, ca authority, id trust.Identity) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return append(ca.node(t, id, &key.PublicKey, time.Time{}), ca.pem...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func TestCheckIssuer(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "node ca"), newAuthority(t, "next node ca")
	certPEM, keyPEM := newPair(t, ca, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1})
	id, err := parseIdentity(certPEM, keyPEM)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, id.checkIssuer(path))
	require.NoError(t, os.WriteFile(path, other.pem, privateFile))
	require.ErrorContains(t, id.checkIssuer(path), "node ca")
	require.NoError(t, os.WriteFile(path, append(other.pem, ca.pem...), privateFile))
	require.NoError(t, id.checkIssuer(path))
}
