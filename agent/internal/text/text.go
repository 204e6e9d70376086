package text

import (
	"strings"
	"time"
)

// maxText bounds text from outside that goes into an error, a log or a result.
const maxText = 256

// FormatTime renders a time in UTC.
func FormatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Truncate bounds text from outside.
func Truncate(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "…"
	}
	return s
}

// Sanitize returns text that any database accepts: valid UTF-8 without NUL, no
// longer than before.
func Sanitize(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// Printable returns the printable ASCII characters of s, others as '?', at most limit
// of them.
func Printable(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), limit)]
}
