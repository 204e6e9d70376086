package secrets

import (
	"bytes"
	"regexp"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// forms are the recognizable forms of secrets: a mark, and a check of the text before
// and after it. Text may mention a token's prefix alone.
//
//nolint:gochecknoglobals // read-only table
var forms = []struct {
	kind, mark string
	match      func(before, after []byte) bool
}{
	{"an enrollment token", trust.TokenPrefix, ownToken},
	{"an API token", trust.APITokenPrefix, ownToken},
	{"a private key", "KEY-----", privateKey},
	{"a Vault token", "hvs.", vaultToken},
	{"a Vault token", "hvb.", vaultToken},
	{"a Vault token", "hvr.", vaultToken},
	{"a Vault token", "s.", oldVaultToken},
	{"a JWT", ".eyJ", jwt},
}

// The characters of a random token. Host names and identifiers rarely have them all.
const (
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	digits = "0123456789"
)

// vaultLength is the length of the shortest Vault token after its prefix.
const vaultLength = 24

func ownToken(_, after []byte) bool { return len(word(after)) >= 8 }

// privateKey matches the start of a PEM block, also in a query.
func privateKey(before, _ []byte) bool {
	return bytes.HasSuffix(before, []byte("PRIVATE ")) || bytes.HasSuffix(before, []byte("PRIVATE+"))
}

func vaultToken(before, after []byte) bool {
	w := word(after)
	return len(w) >= vaultLength && bytes.ContainsAny(w, upper) && bytes.ContainsAny(w, lower) && startsWord(before)
}

// oldVaultToken matches the form of Vault before 1.10.
func oldVaultToken(before, after []byte) bool {
	w := word(after)
	return len(w) == vaultLength && !bytes.ContainsAny(w, "_-") &&
		bytes.ContainsAny(w, upper) && bytes.ContainsAny(w, digits) && startsWord(before)
}

// jwt matches the dot between the header and the claims, which are JSON objects.
func jwt(before, after []byte) bool {
	header := before[bytes.LastIndexFunc(before, notWord)+1:]
	claims := bytes.IndexFunc(after, notWord)
	return bytes.Contains(header, []byte("eyJ")) && claims >= 0 && after[claims] == '.' && len(word(after[claims+1:])) > 0
}

// word returns the start of text that has only letters, digits, _ and -, up to one
// character more than vaultLength.
func word(text []byte) []byte {
	text = text[:min(len(text), vaultLength+1)]
	if end := bytes.IndexFunc(text, notWord); end >= 0 {
		return text[:end]
	}
	return text
}

func notWord(r rune) bool {
	letter := r | 0x20
	return (letter < 'a' || letter > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// escape matches an escape in a JSON string, which ends with a letter or digit.
var escape = regexp.MustCompile(`\\([bfnrt]|u[0-9a-f]{4})$`)

// startsWord reports whether a word starts after text.
func startsWord(text []byte) bool {
	end := text[max(0, len(text)-len(`\u0000`)):]
	return len(end) == 0 || notWord(rune(end[len(end)-1])) || escape.Match(end)
}
