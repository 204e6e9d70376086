package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"iter"
	"slices"
	"strings"
)

// shortestEncoded is less than the length of any encoded secret.
const shortestEncoded = 16

// encodings are those in which data is searched. An encoded text may start anywhere in a
// run of its characters, so that each start within a group is tried.
//
//nolint:gochecknoglobals // read-only table
var encodings = []struct {
	characters string
	group      int
	decode     func(to, from []byte) ([]byte, error)
}{
	{upper + lower + digits + "+/", 4, base64.RawStdEncoding.AppendDecode},
	{upper + lower + digits + "-_", 4, base64.RawURLEncoding.AppendDecode},
	{"0123456789abcdefABCDEF", 2, hex.AppendDecode},
}

// decoded returns what data contains in percent-encoding and, below it, in base64 or hex,
// at most eight times its length. It decodes base64 and hex only if data contains one of
// the parts that encoded secrets have.
func decoded(data []byte, parts [][]byte) []byte {
	var out []byte
	if bytes.Contains(data, []byte("%")) {
		data = unescape(data)
		out = append(out, data...)
	}
	if !slices.ContainsFunc(parts, func(p []byte) bool { return bytes.Contains(data, p) }) {
		return out
	}
	for _, e := range encodings {
		for run := range runs(data, e.characters) {
			for start := range e.group {
				out, _ = e.decode(append(out, '\n'), run[start:]) // an error is an incomplete group at the end
			}
		}
	}
	return out
}

// encodedParts returns the parts of a text's encodings that do not depend on what is
// around the text.
func encodedParts(text string) [][]byte {
	code := hex.EncodeToString([]byte(text))
	parts := [][]byte{[]byte(code), []byte(strings.ToUpper(code))}
	for shift := range 3 {
		padded := append(make([]byte, shift), text...)
		first, last := (shift*8+5)/6, len(padded)*8/6
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			parts = append(parts, []byte(e.EncodeToString(padded)[first:last]))
		}
	}
	return parts
}

// unescape decodes percent-encoding and keeps everything else.
func unescape(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for i := 0; i < len(data); i++ {
		if data[i] == '%' && i+2 < len(data) {
			if b, err := hex.AppendDecode(out, data[i+1:i+3]); err == nil {
				out, i = b, i+2
				continue
			}
		}
		out = append(out, data[i])
	}
	return out
}

// runs returns the parts of data of at least shortestEncoded bytes that have only the
// characters.
func runs(data []byte, characters string) iter.Seq[[]byte] {
	var in [256]bool
	for _, c := range []byte(characters) {
		in[c] = true
	}
	return func(yield func([]byte) bool) {
		start := 0
		for i := range len(data) + 1 {
			if i < len(data) && in[data[i]] {
				continue
			}
			if i-start >= shortestEncoded && !yield(data[start:i]) {
				return
			}
			start = i + 1
		}
	}
}
