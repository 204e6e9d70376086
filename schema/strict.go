package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// maxJSONDepth bounds the nesting that DecodeStrict accepts.
const maxJSONDepth = 32

// DecodeStrict decodes exactly one JSON value of at most limit bytes into v. It
// rejects unknown and duplicate fields, trailing data and deep nesting, so that two
// decoders cannot read the same body differently. Every rejection is
// KindInvalidRequest.
func DecodeStrict(data []byte, limit int, v any) error {
	if len(data) > limit {
		return NewError(KindInvalidRequest, "body of more than %d bytes", limit).WithReason("too_large")
	}
	tokens := json.NewDecoder(bytes.NewReader(data))
	if err := checkValue(tokens, 0); err != nil {
		return Wrap(KindInvalidRequest, err, "malformed JSON")
	}
	if _, err := tokens.Token(); err != io.EOF {
		return NewError(KindInvalidRequest, "malformed JSON: data after the value")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return Wrap(KindInvalidRequest, err, "malformed body")
	}
	return nil
}

// checkValue reads one JSON value and rejects repeated keys of one object.
func checkValue(d *json.Decoder, depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	opening, err := d.Token()
	if err != nil || opening != json.Delim('{') && opening != json.Delim('[') {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		if opening == json.Delim('{') {
			key, err := d.Token()
			if err != nil {
				return err
			}
			// encoding/json matches names without regard to case.
			name, _ := key.(string)
			folded := strings.ToLower(name)
			if seen[folded] {
				return fmt.Errorf("field %q appears twice", name)
			}
			seen[folded] = true
		}
		if err := checkValue(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
