package recovery_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestDifferences: the fields that differ, whatever the order within objects. Long and hostile values are
// one bounded line.
func TestDifferences(t *testing.T) {
	t.Parallel()
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	assert.Equal(t, []string{"gone: 1 → -", "mode: \"monitor\" → \"armed\"", "new: - → true"},
		recovery.Differences(raw(`{"mode": "monitor", "b": {"x": 1, "y": 2}, "gone": 1}`), raw(`{"b": {"y": 2, "x": 1}, "mode": "armed", "new": true}`)))
	assert.Empty(t, recovery.Differences(raw(`[]`), raw(`{"a": 1}`)))
	lines := recovery.Differences(raw(`{"a": "\u001b[2J"}`), raw(`{"a": "`+strings.Repeat("x", 1000)+`"}`))
	assert.Len(t, lines, 1)
	assert.NotContains(t, lines[0], "\x1b")
	assert.Less(t, len(lines[0]), 700)
}
