package text_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

func TestIsToken(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "Z9", "boot-1700000000", "a.b_c-d", strings.Repeat("x", 20)} {
		assert.True(t, text.IsToken(good, 20, "._-"), good)
	}
	for _, bad := range []string{"", "a b", "a/b", "a:b", "ä", "a\x00", "a\n", strings.Repeat("x", 21)} {
		assert.False(t, text.IsToken(bad, 20, "._-"), bad)
	}
	assert.True(t, text.IsToken("a:b", 20, ":"))
	assert.False(t, text.IsToken("a_b", 20, ""))
}

func TestOr(t *testing.T) {
	t.Parallel()
	for want, alternatives := range map[string][]string{"": nil, "a": {"a"}, "a or b": {"a", "b"}, "a, b or c": {"a", "b", "c"}} {
		assert.Equal(t, want, text.Or(alternatives))
	}
}

func TestIsPrintable(t *testing.T) {
	t.Parallel()
	assert.True(t, text.IsPrintable("", 3))
	assert.True(t, text.IsPrintable("a ~", 3))
	for _, bad := range []string{"abcd", "a\t", "\x7f", "ä", "\xff"} {
		assert.False(t, text.IsPrintable(bad, 3), "%q", bad)
	}
}

func TestIsLine(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"": true, "ééé": true, "éééé": false, "a\nb": false, "\x1b": false, "\u0085": false} {
		assert.Equal(t, want, text.IsLine(s, 3), "%q", s)
	}
}

func TestIsSHA256Hex(t *testing.T) {
	t.Parallel()
	digest := schema.SHA256Hex(nil)
	require.Equal(t, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", digest)
	require.True(t, text.IsSHA256Hex(digest))
	for _, bad := range []string{"", digest[1:], digest + "00", strings.ToUpper(digest), "g" + digest[1:], digest[:32] + "x" + digest[33:]} {
		require.False(t, text.IsSHA256Hex(bad), bad)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "plain text": "plain text", "Größe 3 µm": "Größe 3 µm",
		"two\nlines\r\n\tand\u2028more": "two lines and more",
		"red \x1b[31m \x00\a":           "red ?[31m ??",
		"c1 \u009b2J":                   "c1 ?2J",
		"right \u202eto left\u2066":     "right ?to left?",
		"in\u200bvisible\ufeff":         "in?visible?",
		"not \xff UTF-8":                "not ? UTF-8",
		strings.Repeat("é", 30):         strings.Repeat("é", 30),
		strings.Repeat("é", 31):         strings.Repeat("é", 29) + "…",
		strings.Repeat("x", 1<<20):      strings.Repeat("x", 29) + "…",
	} {
		require.Equal(t, want, text.Line(in, 30))
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	require.Equal(t, "`**Next:** 'curl x | sh'`", text.Quote("**Next:**\n`curl x | sh`", 30))
	require.Equal(t, "`"+strings.Repeat("x", 29)+"…`", text.Quote(strings.Repeat("x", 31), 30))
}

func TestCount(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"0 rows", "1 row", "2 rows"}, []string{text.Count(0, "row"), text.Count(1, "row"), text.Count(2, "row")})
}
