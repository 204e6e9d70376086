package archtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGlossaryHasOneRowForEachTerm: a term with two rows has two meanings, or one that is written twice.
func TestGlossaryHasOneRowForEachTerm(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/glossary.md")
	require.NoError(t, err)
	seen := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.TrimSpace(cells[1]) == "term" || strings.HasPrefix(strings.TrimSpace(cells[1]), "---") {
			continue
		}
		term := strings.TrimSpace(cells[1])
		assert.Empty(t, seen[term], "two rows for %q", term)
		seen[term] = line
	}
	require.Greater(t, len(seen), 50)
}
