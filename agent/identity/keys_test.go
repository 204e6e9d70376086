package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// TestRecoverRejectsOtherKeyTypes: an unreadable file is no recovery key.
func TestRecoverRejectsOtherKeyTypes(t *testing.T) {
	t.Parallel()
	s := disk.At(t.TempDir())
	key, err := newStagedKey()
	require.NoError(t, err)
	for _, text := range []string{"", "no pem", key.Key} {
		require.NoError(t, os.WriteFile(s.File("recovery-key.pem"), []byte(text), 0o600))
		_, err := keyRing{s}.recovery()
		require.Error(t, err)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	require.NoError(t, os.WriteFile(s.File("recovery-key.pem"), text, 0o600))
	got, err := keyRing{s}.recovery()
	require.NoError(t, err)
	require.Equal(t, private, got)
}

// Each attempt with a token uses the same recovery key, and another token gets another one. The
// node's key stays until the next one is taken.
func TestNextRecoveryKey(t *testing.T) {
	t.Parallel()
	s := disk.At(t.TempDir())
	r := keyRing{s}
	first, err := r.nextRecovery("token 1")
	require.NoError(t, err)
	again, err := r.nextRecovery("token 1")
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.NoError(t, r.takeRecovery(first))
	require.NoError(t, r.dropNextRecovery())
	second, err := r.nextRecovery("token 2")
	require.NoError(t, err)
	require.NotEqual(t, first, second)
	kept, err := r.recovery()
	require.NoError(t, err)
	require.Equal(t, first, kept)
	require.NoError(t, os.WriteFile(s.File(nextRecoveryFile), []byte("torn"), 0o600))
	third, err := r.nextRecovery("token 2")
	require.NoError(t, err)
	require.NotEqual(t, second, third)
	require.NoError(t, r.wipe())
	require.NoFileExists(t, s.File(nextRecoveryFile))
}
