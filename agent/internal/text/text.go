package text

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// maxText bounds text from outside that goes into an error, a log or a result.
const maxText = 256

// SHA256Hex returns the hex SHA-256 of b.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

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
