package recovery

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/gpuaas/gpuaas/schema/text"
)

// maxDifference bounds a value that Differences lists, in characters.
const maxDifference = 300

// Differences lists the top-level fields of two policies in JSON that differ, in order of name, with
// both values: "samples: 3 → 7". A field that one policy lacks is "-". The order of the fields within
// an object does not matter. There are none if a document is no object.
func Differences(before, after json.RawMessage) (lines []string) {
	var was, is map[string]any
	if json.Unmarshal(before, &was) != nil || json.Unmarshal(after, &is) != nil {
		return nil
	}
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a, b := valueText(was, name), valueText(is, name); a != b {
			lines = append(lines, sentence("%s: %s → %s", name, text.Line(a, maxDifference), text.Line(b, maxDifference)))
		}
	}
	return lines
}

// valueText returns a field as JSON.
func valueText(fields map[string]any, name string) string {
	v, ok := fields[name]
	if !ok {
		return "-"
	}
	raw, err := json.Marshal(v)
	if err != nil { // decoded JSON can be encoded
		return "-"
	}
	return string(raw)
}
