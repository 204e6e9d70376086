// Package secrets finds secrets in text that would be stored: by their form, and
// among the secrets of this process. Start with Scanner.Check.
package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// shortest is the minimum length of a known secret. A shorter one, such as a
// development database's password, would match ordinary text.
const shortest = 16

// Scanner finds secrets. It is safe for concurrent use.
type Scanner struct {
	// known are the known secrets in all their encodings.
	known [][]byte
	// encoded are the prefixes of tokens in base64 and hex.
	encoded [][]byte
}

// New returns a scanner for secrets by their form and for the known ones.
func New(known ...schema.Secret) *Scanner {
	s := &Scanner{encoded: append(encodings(trust.TokenPrefix), encodings(trust.APITokenPrefix)...)}
	for _, secret := range known {
		if text := secret.Reveal(); len(text) >= shortest {
			s.known = append(append(s.known, []byte(text), quoted(text)), encodings(text)...)
		}
	}
	return s
}

// quoted returns text as it is inside of a JSON string.
func quoted(text string) []byte {
	out, _ := json.Marshal(text) // a string always encodes
	return out[1 : len(out)-1]
}

// encodings returns the parts of text that are the same in every base64 and hex
// encoding of data that contains it: both base64 alphabets at each of the three
// alignments.
func encodings(text string) [][]byte {
	out := [][]byte{[]byte(hex.EncodeToString([]byte(text)))}
	for shift := range 3 {
		padded := append(make([]byte, shift), text...)
		first, last := (shift*8+5)/6, len(padded)*8/6
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			out = append(out, []byte(e.EncodeToString(padded)[first:last]))
		}
	}
	return slices.CompactFunc(out, bytes.Equal)
}

// wordStart matches what precedes a word. In a JSON string that may be an escape, which
// ends with a letter or digit.
const wordStart = `(^|[^\w-]|\\[bfnrt]|\\u[0-9a-f]{4})`

// forms are the recognizable forms of secrets. hint is a part of every match, which
// is cheap to find. Text may mention a token's prefix alone.
//
//nolint:gochecknoglobals // read-only table
var forms = []struct {
	kind, hint string
	pattern    *regexp.Regexp
}{
	{"an enrollment token", trust.TokenPrefix, regexp.MustCompile(trust.TokenPrefix + `[\w-]{8}`)},
	{"an API token", trust.APITokenPrefix, regexp.MustCompile(trust.APITokenPrefix + `\w{8}`)},
	{"a private key", "PRIVATE KEY-----", regexp.MustCompile(`PRIVATE KEY-----`)},
	{"a Vault token", "hv", regexp.MustCompile(wordStart + `hv[sbr]\.[\w-]{24}`)},
	// The form of Vault before 1.10.
	{"a Vault token", "s.", regexp.MustCompile(wordStart + `s\.[A-Za-z0-9]{24}([^\w-]|$)`)},
	{"a JWT", "eyJ", regexp.MustCompile(`eyJ[\w-]*\.eyJ[\w-]*\.[\w-]`)},
}

// Find names the kind of secret that data contains, or returns "".
func (s *Scanner) Find(data []byte) string {
	for _, f := range forms {
		if bytes.Contains(data, []byte(f.hint)) && f.pattern.Match(data) {
			return f.kind
		}
	}
	switch {
	case containsAny(data, s.encoded):
		return "an encoded token"
	case containsAny(data, s.known):
		return "a secret of this process"
	}
	return ""
}

func containsAny(data []byte, needles [][]byte) bool {
	return slices.ContainsFunc(needles, func(n []byte) bool { return bytes.Contains(data, n) })
}

// Check rejects a request that contains a secret, with KindInvalidRequest and reason
// secret_in_request. It encodes v as JSON, so that no escape in the original hides
// one. The error never contains the secret.
func (s *Scanner) Check(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "encoding the request for the search for secrets")
	}
	if found := s.Find(text); found != "" {
		return schema.NewError(schema.KindInvalidRequest,
			"the request contains what looks like %s, which histories and the audit trail would keep; nothing was stored", found).
			WithReason("secret_in_request").WithNext("send the request without the secret, and replace the secret if others could read it")
	}
	return nil
}
