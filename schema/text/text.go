// Package text checks and cleans text that comes from outside: request bodies,
// headers, node reports. It also writes alternatives for messages. Start with IsToken.
package text

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// IsToken reports whether s has 1 to limit bytes and consists of ASCII letters,
// digits and the given punctuation, so that it may go into a log, a header or a
// path unescaped.
func IsToken(s string, limit int, punctuation string) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte(punctuation, c) < 0:
			return false
		}
	}
	return true
}

// Or writes alternatives as "a, b or c".
func Or[T ~string](alternatives []T) string {
	var b strings.Builder
	for i, a := range alternatives {
		switch {
		case i == 0:
		case i == len(alternatives)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(string(a))
	}
	return b.String()
}

// IsPrintable reports whether s has at most limit bytes and consists of
// printable ASCII characters, the space included.
func IsPrintable(s string, limit int) bool {
	return len(s) <= limit && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// IsLine reports whether s is one line of at most limit characters, none of them a
// control character.
func IsLine(s string, limit int) bool {
	return utf8.RuneCountInString(s) <= limit && !strings.ContainsFunc(s, unicode.IsControl)
}

// IsSHA256Hex reports whether s is a SHA-256 in the form of schema.SHA256Hex: 64
// lower-case hex digits.
func IsSHA256Hex(s string) bool {
	return len(s) == 64 && strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }) < 0
}

// Line returns s as one line of at most limit characters, the last of them "…" if s is
// longer. Line breaks and tabs become spaces; control characters, invisible ones and
// those that change the direction of writing become "?". It is for texts that a node or
// a person wrote and others read in a terminal or a page.
func Line(s string, limit int) string {
	if len(s) > 16*limit { // clipped in any case, and bounds the work below
		s = s[:16*limit]
	}
	runes := []rune(strings.Join(strings.Fields(strings.Map(visible, strings.ToValidUTF8(s, "?"))), " "))
	if len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return string(runes)
}

// visible replaces the characters that a terminal would not print as they are.
func visible(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case !unicode.IsGraphic(r):
		return '?'
	}
	return r
}

// Plain returns s as it is if it is a token with the punctuation, and otherwise quoted; see
// IsToken and Quote.
func Plain(s string, limit int, punctuation string) string {
	if IsToken(s, limit, punctuation) {
		return s
	}
	return Quote(s, limit)
}

// Quote returns s as Line does, between backquotes: in Markdown it is a code span, so
// that no markup in s takes effect.
func Quote(s string, limit int) string {
	return "`" + strings.ReplaceAll(Line(s, limit), "`", "'") + "`"
}

// Count returns a number of things: 1 row, 2 rows.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
