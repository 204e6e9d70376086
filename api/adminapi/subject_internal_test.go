package adminapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const shared = "the-shared-token-0123456789"

// line is a line of the tokens file.
func line(name, token string) string {
	sum := sha256.Sum256([]byte(token))
	return name + " admin " + hex.EncodeToString(sum[:]) + "\n"
}

// write replaces a file as a program should: with a rename.
func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func tokensOf(t *testing.T, text string) (*Tokens, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, text)
	tokens, err := NewTokens(sha256.Sum256([]byte(shared)), "ops", path)
	require.NoError(t, err)
	return tokens, path
}

func (t *Tokens) accepts(token string) bool {
	r := httptest.NewRequestWithContext(context.Background(), "GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	_, err := t.Authenticate(r)
	return err == nil
}

// readTwice reads the file until a change of it takes effect.
func (t *Tokens) readTwice() {
	t.read()
	t.read()
}

func TestTokensFileRefused(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	path := filepath.Join(t.TempDir(), "tokens")
	for text, says := range map[string]string{
		"a admin": "line 1: it must be NAME ROLE SHA256", "a admin xyz": "line 1: the hash", "a king " + hash: "line 1: the role",
		"a/b admin " + hash: "line 1: the name", "a admin 00": "line 1: the hash", "# x\na admin " + hash[1:]: "line 2: the hash",
		"a admin " + hash + "\nb viewer " + hash + "\n": "line 2: the token of b is already that of a",
		line("b", shared): "line 1: the token of b is already that of ops",
		strings.Repeat("# comment\n", maxTokensFile/9): "more than 1048576 bytes",
	} {
		write(t, path, text)
		_, err := NewTokens(sha256.Sum256([]byte(shared)), "ops", path)
		require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest}, says)
		require.ErrorContains(t, err, says)
	}
	_, err := NewTokens([32]byte{}, "", path+".none")
	require.ErrorContains(t, err, "no such file")
	write(t, path, line("a", "token-of-a"))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, trustedOwner(info, os.Geteuid()))
	if os.Geteuid() != 0 {
		assert.False(t, trustedOwner(info, os.Geteuid()+1))
	} else {
		require.NoError(t, os.Chown(path, 1, -1))
		_, err = NewTokens([32]byte{}, "", path)
		require.ErrorContains(t, err, "belongs to another user")
	}
	for _, r := range trust.Roles() {
		assert.Equal(t, r == trust.RoleViewer || r == trust.RoleOperator || r == trust.RoleAdmin, r.Allows(trust.RoleViewer), r)
	}
}

// Only a regular file that only its owner may write is read, and none blocks.
func TestTokensFileKinds(t *testing.T) {
	t.Parallel()
	tokens, path := tokensOf(t, line("ada", "first"))
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		require.NoError(t, os.Chmod(path, mode))
		tokens.readTwice()
		require.ErrorContains(t, tokens.Fault(), "chmod go-w "+path)
		require.True(t, tokens.accepts("first"))
	}
	require.NoError(t, os.Chmod(path, 0o644))
	tokens.readTwice()
	require.NoError(t, tokens.Fault())
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	tokens.readTwice()
	require.ErrorContains(t, tokens.Fault(), "not a regular file")
	require.True(t, tokens.accepts("first"))
}

// A change of the file takes effect without a restart. A version that is not valid,
// or that its writer has not finished, replaces nothing.
func TestTokensAreReadAgain(t *testing.T) {
	t.Parallel()
	tokens, path := tokensOf(t, line("ada", "first"))
	require.True(t, tokens.accepts("first"))
	write(t, path, line("ada", "second"))
	tokens.readTwice()
	require.False(t, tokens.accepts("first"))
	require.True(t, tokens.accepts("second"))

	for text, says := range map[string]string{
		"broken": "line 1", line("ada", "third")[:40]: "line 1",
	} {
		write(t, path, text)
		tokens.readTwice()
		require.ErrorContains(t, tokens.Fault(), says)
		require.True(t, tokens.accepts("second"), text)
		require.True(t, tokens.accepts(shared))
	}
	require.NoError(t, os.Remove(path))
	tokens.readTwice()
	require.Error(t, tokens.Fault())
	require.True(t, tokens.accepts("second"))

	// The writer has written the first of two lines.
	write(t, path, line("ada", "third"))
	tokens.read()
	require.True(t, tokens.accepts("second"))
	write(t, path, line("ada", "third")+line("bea", "second"))
	tokens.readTwice()
	require.True(t, tokens.accepts("third"))
	require.True(t, tokens.accepts("second"))
	require.NoError(t, tokens.Fault())
}

// Run reads the file and reports each change of its fault once.
func TestTokensRun(t *testing.T) {
	t.Parallel()
	tokens, path := tokensOf(t, line("ada", "first"))
	tokens.every = time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	faults, ended := make(chan error), make(chan error, 1)
	go func() { ended <- tokens.Run(ctx, func(fault error) { faults <- fault }) }()
	write(t, path, "broken")
	require.Error(t, <-faults)
	write(t, path, line("ada", "second"))
	require.NoError(t, <-faults)
	require.True(t, tokens.accepts("second"))
	stop()
	require.NoError(t, <-ended)
}

// A file without tokens revokes all of them. A file that is empty for one reading is one that a
// writer has not finished.
func TestEmptyTokensFileRevokes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# none\n"} {
		tokens, path := tokensOf(t, line("ada", "first"))
		write(t, path, text)
		tokens.read()
		require.True(t, tokens.accepts("first"))
		write(t, path, line("ada", "first"))
		tokens.readTwice()
		require.True(t, tokens.accepts("first"))
		write(t, path, text)
		tokens.readTwice()
		require.NoError(t, tokens.Fault())
		require.False(t, tokens.accepts("first"), "%q", text)
		require.True(t, tokens.accepts(shared), "the admin token is another one")
		write(t, path, line("ada", "first"))
		tokens.readTwice()
		require.True(t, tokens.accepts("first"))
	}
}
