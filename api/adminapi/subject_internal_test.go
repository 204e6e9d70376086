package adminapi

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A change of the file takes effect without a restart, and a broken file leaves
// the last good one in use.
func TestTokensAreReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	line := func(token string) string {
		sum := sha256.Sum256([]byte(token))
		return "ada admin " + hex.EncodeToString(sum[:]) + "\n"
	}
	write(line("first"))
	tokens, err := NewTokens([sha256.Size]byte{}, "", path)
	require.NoError(t, err)
	clock := time.Now()
	tokens.now = func() time.Time { return clock }
	accepts := func(token string) bool {
		clock = clock.Add(tokensCheck)
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := tokens.Authenticate(r)
		return err == nil
	}
	require.True(t, accepts("first"))
	write(line("second"))
	require.False(t, accepts("first"))
	require.True(t, accepts("second"))
	write("broken")
	require.True(t, accepts("second"))
	require.Error(t, tokens.Fault())
	require.NoError(t, os.Remove(path))
	require.True(t, accepts("second"))
	write(line("third"))
	require.True(t, accepts("third"))
	require.NoError(t, tokens.Fault())
}
