package text_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/text"
)

func TestShellQuote(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{"": "''", "a b": "'a b'", "$(x)\n`y`": "'$(x)\n`y`'", "it's": `'it'\''s'`, "'": `''\'''`} {
		require.Equal(t, want, text.ShellQuote(s))
	}
}
