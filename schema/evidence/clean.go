package evidence

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/gpuaas/gpuaas/schema/secrets"
)

// Clean returns the bundle as it may be stored and shown: without the secrets that scan finds in any
// text, and with "?" for characters that a terminal or the database would not take as text. The node
// wrote the kernel lines, the outputs of tests and the names in it. The error is that of a bundle
// that is no JSON.
func (b Bundle) Clean(scan *secrets.Scanner) (out Bundle, err error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return out, err
	}
	var document any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&document); err != nil {
		return out, err
	}
	if raw, err = json.Marshal(cleaned(document, scan, scan.Texts())); err != nil {
		return out, err
	}
	err = json.Unmarshal(raw, &out)
	return out, err
}

// cleaned returns a JSON value with clean texts. redact is that of the list that has the value: an
// unfinished private key hides what follows in its list, and nothing else.
func cleaned(value any, scan *secrets.Scanner, redact func(string) string) any {
	switch v := value.(type) {
	case string:
		return strings.Map(printable, strings.ToValidUTF8(redact(v), "?"))
	case []any:
		redact = scan.Texts()
		for i := range v {
			v[i] = cleaned(v[i], scan, redact)
		}
	case map[string]any:
		kept := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			name, _ := cleaned(key, scan, scan.Texts()).(string)
			kept[name] = cleaned(v[key], scan, scan.Texts())
		}
		return kept
	}
	return value
}

// printable replaces a character that is neither visible nor a line break or a tab.
func printable(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
		return r
	}
	return '?'
}
