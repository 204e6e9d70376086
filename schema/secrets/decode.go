package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"iter"
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
// at most eight times its length.
func decoded(data []byte) []byte {
	var out []byte
	if bytes.Contains(data, []byte("%")) {
		data = unescape(data)
		out = append(out, data...)
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

// unescape decodes percent-encoding and keeps what is none.
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
