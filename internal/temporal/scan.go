package temporal

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// shortestSecret is the minimum length of a registered secret. A shorter one, such as a
// development database's password, would match ordinary text.
const shortestSecret = 16

// scanner finds secrets in messages to Temporal, by their form and among the
// registered ones. It is safe for concurrent use.
type scanner struct {
	// known are the registered secrets in all their encodings.
	known [][]byte
	// encoded are the token prefix's forms in base64 and hex.
	encoded [][]byte
}

func newScanner(secrets []schema.Secret) *scanner {
	s := &scanner{encoded: encodings(trust.TokenPrefix)}
	for _, secret := range secrets {
		if text := secret.Reveal(); len(text) >= shortestSecret {
			s.known = append(append(s.known, []byte(text)), encodings(text)...)
		}
	}
	return s
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

// forms are the recognizable forms of secrets. hint is a part of every match, which
// is cheap to find.
//
//nolint:gochecknoglobals // read-only table
var forms = []struct {
	kind, hint string
	pattern    *regexp.Regexp
}{
	// Text may mention the prefix alone.
	{"an enrollment token", trust.TokenPrefix, regexp.MustCompile(trust.TokenPrefix + `[\w-]{8}`)},
	{"a private key", "PRIVATE KEY-----", regexp.MustCompile(`PRIVATE KEY-----`)},
	{"a Vault token", "hv", regexp.MustCompile(`hv[sbr]\.[\w-]{20}`)},
	// An older Vault token is a word of its own.
	{"a Vault token", "s.", regexp.MustCompile(`(^|[^\w-])s\.[\w-]{24}([^\w-]|$)`)},
	{"a JWT", "eyJ", regexp.MustCompile(`eyJ[\w-]*\.eyJ[\w-]*\.[\w-]`)},
}

// find names the kind of secret that data contains, or returns "".
func (s *scanner) find(data []byte) string {
	for _, f := range forms {
		if bytes.Contains(data, []byte(f.hint)) && f.pattern.Match(data) {
			return f.kind
		}
	}
	switch {
	case containsAny(data, s.encoded):
		return "an encoded enrollment token"
	case containsAny(data, s.known):
		return "a secret of this process"
	}
	return ""
}

func containsAny(data []byte, needles [][]byte) bool {
	return slices.ContainsFunc(needles, func(n []byte) bool { return bytes.Contains(data, n) })
}

// findIn scans every field of a message: failures, headers, search attributes,
// memos, ids, payloads and unknown fields.
func (s *scanner) findIn(m proto.Message) (found string) {
	// Without a resolver, the bytes of an Any are scanned as they are.
	walk := protorange.Options{Resolver: (*protoregistry.Types)(nil)}
	err := walk.Range(m.ProtoReflect(), func(v protopath.Values) error {
		at := v.Index(-1)
		if at.Step.Kind() == protopath.MapIndexStep {
			found = s.find([]byte(at.Step.MapIndex().String()))
		}
		switch value := at.Value.Interface().(type) {
		case string:
			found = cmp.Or(found, s.find([]byte(value)))
		case []byte:
			found = cmp.Or(found, s.find(value))
		}
		if found != "" {
			return protorange.Terminate
		}
		return nil
	}, nil)
	if err != nil {
		return "unreadable data"
	}
	return found
}
