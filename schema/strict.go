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
	if err := checkKeys(json.NewDecoder(bytes.NewReader(data))); err != nil {
		return Wrap(KindInvalidRequest, err, "malformed JSON")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return Wrap(KindInvalidRequest, err, "malformed body")
	}
	return nil
}

// checkKeys walks one JSON value and its end, and rejects repeated keys of one
// object.
func checkKeys(d *json.Decoder) error {
	if err := checkValue(d, 0); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("data after the value")
	}
	return nil
}

func checkValue(d *json.Decoder, depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		return checkObject(d, depth)
	case json.Delim('['):
		for d.More() {
			if err := checkValue(d, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	}
	return err
}

func checkObject(d *json.Decoder, depth int) error {
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := t.(string)
		// encoding/json matches names without regard to case.
		folded := strings.ToLower(key)
		if seen[folded] {
			return fmt.Errorf("field %q appears twice", key)
		}
		seen[folded] = true
		if err := checkValue(d, depth+1); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}
