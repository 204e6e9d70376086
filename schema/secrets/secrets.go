// Package secrets finds secrets in text that would be stored: by their form, and
// among the secrets of this process. Start with Scanner.Check.
package secrets

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpuaas/gpuaas/schema"
)

// shortest is the minimum length of a known secret. A shorter one, such as a
// development database's password, would match ordinary text.
const shortest = 16

// shortestMark is the minimum length of a mark that is searched in encoded text. It
// excludes that of a Vault token from before Vault 1.10.
const shortestMark = 4

// Scanner finds secrets. It is safe for concurrent use.
type Scanner struct {
	learning sync.Mutex
	terms    atomic.Pointer[terms]
}

// terms are what a scanner searches for besides the forms.
type terms struct {
	// known are the known secrets, also as they are inside of a JSON string.
	known [][]byte
	// encoded are parts of encoded secrets.
	encoded [][]byte
}

// New returns a scanner for secrets by their form and for the known ones.
func New(known ...schema.Secret) *Scanner {
	s, t := &Scanner{}, &terms{}
	for _, f := range forms {
		if len(f.mark) >= shortestMark {
			t.encoded = append(t.encoded, encodedParts(f.mark)...)
		}
	}
	s.terms.Store(t)
	for _, secret := range known {
		s.Learn(secret)
	}
	return s
}

// Learn adds a secret to the known ones. A second call with the same secret changes nothing.
func (s *Scanner) Learn(secret schema.Secret) {
	text := secret.Reveal()
	if len(text) < shortest {
		return
	}
	s.learning.Lock()
	defer s.learning.Unlock()
	old := s.terms.Load()
	if slices.ContainsFunc(old.known, func(k []byte) bool { return string(k) == text }) {
		return
	}
	s.terms.Store(&terms{known: slices.Concat(old.known, [][]byte{[]byte(text), quoted(text)}),
		encoded: slices.Concat(old.encoded, encodedParts(text), encodedParts(string(quoted(text))))})
}

// quoted returns text as it is inside of a JSON string.
func quoted(text string) []byte {
	out, _ := json.Marshal(text) // a string always encodes
	return out[1 : len(out)-1]
}

// Find names the kind of secret that data contains, or returns "". It also searches what
// data contains in percent-encoding, base64 or hex. The time is linear in the length.
func (s *Scanner) Find(data []byte) string {
	if found := s.find(data); found != "" {
		return found
	}
	return s.find(decoded(data, s.terms.Load().encoded))
}

func (s *Scanner) find(data []byte) string {
	for _, f := range forms {
		for at := 0; ; at += len(f.mark) {
			next := bytes.Index(data[at:], []byte(f.mark))
			if next < 0 {
				break
			}
			at += next
			if f.match(data[:at], data[at+len(f.mark):]) {
				return f.kind
			}
		}
	}
	for _, k := range s.terms.Load().known {
		if bytes.Contains(data, k) {
			return "a secret of this process"
		}
	}
	return ""
}

// Withhold returns text, or a note in its place if it contains a secret. All of the text
// goes, because an encoded secret has no certain end.
func (s *Scanner) Withhold(text string) string {
	if found := s.Find([]byte(text)); found != "" {
		return "[withheld: it contains what looks like " + found + "]"
	}
	return text
}

// WithholdJSON withholds the strings of a JSON document that contain a secret, names of
// fields included. raw must be as encoding/json writes it.
func (s *Scanner) WithholdJSON(raw json.RawMessage) (json.RawMessage, error) {
	if s.Find(raw) == "" {
		return raw, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(s.withholdIn(v))
}

func (s *Scanner) withholdIn(v any) any {
	switch v := v.(type) {
	case string:
		return s.Withhold(v)
	case []any:
		for i := range v {
			v[i] = s.withholdIn(v[i])
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, value := range v {
			clean[s.Withhold(name)] = s.withholdIn(value)
		}
		return clean
	}
	return v
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
