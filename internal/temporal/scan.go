package temporal

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// shortestSecret is the minimum length of a registered secret. A shorter one,
	// such as a development database's password, would match ordinary text.
	shortestSecret = 16
	// shortestFind is the minimum length of a match.
	shortestFind = 8
)

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
		std := base64.RawStdEncoding.EncodeToString(padded)[first:last]
		url := base64.RawURLEncoding.EncodeToString(padded)[first:last]
		out = append(out, []byte(std))
		if url != std {
			out = append(out, []byte(url))
		}
	}
	return out
}

// find names the kind of secret that data contains, or returns "".
func (s *scanner) find(data []byte) string {
	if len(data) < shortestFind {
		return ""
	}
	switch {
	case holdsToken(data):
		return "an enrollment token"
	case containsAny(data, s.encoded):
		return "an encoded enrollment token"
	case bytes.Contains(data, []byte("PRIVATE KEY-----")):
		return "a private key"
	case holdsVaultToken(data):
		return "a Vault token"
	case holdsJWT(data):
		return "a JWT"
	case containsAny(data, s.known):
		return "a secret of this process"
	}
	return ""
}

func containsAny(data []byte, needles [][]byte) bool {
	for _, n := range needles {
		if bytes.Contains(data, n) {
			return true
		}
	}
	return false
}

// anyAfter calls match with the data before and after each occurrence of prefix,
// until match returns true.
func anyAfter(data []byte, prefix string, match func(before, after []byte) bool) bool {
	for from := 0; ; {
		i := bytes.Index(data[from:], []byte(prefix))
		if i < 0 {
			return false
		}
		at := from + i
		from = at + len(prefix)
		if match(data[:at], data[from:]) {
			return true
		}
	}
}

// holdsToken requires some of a token after the prefix, so that text may mention the
// prefix.
func holdsToken(data []byte) bool {
	return anyAfter(data, trust.TokenPrefix, func(_, after []byte) bool { return run(after) >= 8 })
}

// holdsVaultToken matches current tokens by their prefixes, and older ones (s. and
// 24 characters) at the start of a word.
func holdsVaultToken(data []byte) bool {
	for _, prefix := range []string{"hvs.", "hvb.", "hvr."} {
		if anyAfter(data, prefix, func(_, after []byte) bool { return run(after) >= 20 }) {
			return true
		}
	}
	return anyAfter(data, "s.", func(before, after []byte) bool {
		return (len(before) == 0 || !wordByte(before[len(before)-1])) && run(after) == 24
	})
}

// holdsJWT matches header, claims and signature; the first two are JSON objects in
// base64.
func holdsJWT(data []byte) bool {
	const object = "eyJ"
	return anyAfter(data, object, func(_, after []byte) bool {
		claims, ok := bytes.CutPrefix(after[run(after):], []byte("."+object))
		if !ok {
			return false
		}
		signature, ok := bytes.CutPrefix(claims[run(claims):], []byte("."))
		return ok && run(signature) > 0
	})
}

// run counts the word bytes at the start of data.
func run(data []byte) int {
	for i, c := range data {
		if !wordByte(c) {
			return i
		}
	}
	return len(data)
}

func wordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_' || c == '-'
}

// findIn scans every field of a message: failures, headers, search attributes,
// memos, ids, payloads and unknown fields.
func (s *scanner) findIn(m proto.Message) string { return s.message(m.ProtoReflect()) }

func (s *scanner) message(m protoreflect.Message) (found string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		found = s.field(f, v)
		return found == ""
	})
	if found != "" {
		return found
	}
	return s.find(m.GetUnknown())
}

func (s *scanner) field(f protoreflect.FieldDescriptor, v protoreflect.Value) (found string) {
	switch {
	case f.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			if found = s.value(f.MapKey().Kind(), k.Value()); found == "" {
				found = s.value(f.MapValue().Kind(), v)
			}
			return found == ""
		})
	case f.IsList():
		for i := 0; i < v.List().Len() && found == ""; i++ {
			found = s.value(f.Kind(), v.List().Get(i))
		}
	default:
		found = s.value(f.Kind(), v)
	}
	return found
}

func (s *scanner) value(k protoreflect.Kind, v protoreflect.Value) string {
	switch k {
	case protoreflect.StringKind:
		return s.find([]byte(v.String()))
	case protoreflect.BytesKind:
		return s.find(v.Bytes())
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return s.message(v.Message())
	}
	return ""
}
