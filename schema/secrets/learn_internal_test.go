package secrets

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// TestLearnAgain: a secret that is read again and again, as from Vault, does not make the search slower.
func TestLearnAgain(t *testing.T) {
	t.Parallel()
	secret := schema.NewSecret("correct-horse-battery-staple")
	s := New(secret)
	before := s.terms.Load()
	s.Learn(secret)
	require.Same(t, before, s.terms.Load())
}
