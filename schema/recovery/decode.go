package recovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// MaxPolicy is the size limit of a policy document, in bytes.
const MaxPolicy = 64 << 10

// ReasonBadPolicy is the reason of a KindInvalidRequest for a policy that Validate rejects.
const ReasonBadPolicy = "bad_policy"

// DecodePolicy decodes and validates a policy in JSON. A top-level field that the document lacks has
// the value of Default; a field that it has replaces that value as a whole. Unknown fields, fields
// that appear twice and malformed values are KindInvalidRequest, with the field and the fix in the
// message.
func DecodePolicy(document []byte) (Policy, error) {
	var given map[string]json.RawMessage
	if err := schema.DecodeStrict(document, MaxPolicy, &given); err != nil {
		return Policy{}, err
	}
	if given == nil {
		return Policy{}, schema.NewError(schema.KindInvalidRequest, "malformed policy: the document is null: write an object, {} for the default").WithReason(ReasonBadPolicy)
	}
	full, err := json.Marshal(Default())
	if err != nil {
		return Policy{}, schema.Wrap(schema.KindInternal, err, "encoding the default policy")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(full, &fields); err != nil {
		return Policy{}, schema.Wrap(schema.KindInternal, err, "decoding the default policy")
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if err := decodeField(name, given[name]); err != nil {
			return Policy{}, err
		}
		fields[name] = given[name]
	}
	merged, err := json.Marshal(fields)
	if err != nil {
		return Policy{}, schema.Wrap(schema.KindInvalidRequest, err, "malformed policy")
	}
	var p Policy
	if err := schema.DecodeStrict(merged, 2*MaxPolicy, &p); err != nil {
		return Policy{}, err
	}
	return p.filled(), p.Validate()
}

// filled returns the policy with empty lists instead of nil, so that policies that mean the same have
// the same JSON.
func (p Policy) filled() Policy {
	p.Ladders, p.Repairs, p.Windows = orEmpty(p.Ladders), orEmpty(p.Repairs), orEmpty(p.Windows)
	p.Budgets, p.MaxOut = orEmpty(p.Budgets), orEmpty(p.MaxOut)
	p.ReplaceClasses, p.GPUReplaceClasses = orEmpty(p.ReplaceClasses), orEmpty(p.GPUReplaceClasses)
	p.Approvals, p.DisabledCheckers = orEmpty(p.Approvals), orEmpty(p.DisabledCheckers)
	if p.Thresholds == nil {
		p.Thresholds = map[string]Duration{}
	}
	return p
}

func orEmpty[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// decodeField decodes one field alone, so that the error names it.
func decodeField(name string, value json.RawMessage) error {
	document, err := json.Marshal(map[string]json.RawMessage{name: value})
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "malformed policy: field %.40q", name)
	}
	err = schema.DecodeStrict(document, 2*MaxPolicy, new(Policy))
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		article := "a "
		if wrong.Value == "array" || wrong.Value == "object" {
			article = "an "
		}
		return schema.NewError(schema.KindInvalidRequest, "malformed policy: field %.80q is %s%.40s: write %s",
			cmp.Or(wrong.Field, name), article, wrong.Value, formOf(wrong.Type)).WithReason(ReasonBadPolicy)
	}
	if _, parsed := errors.AsType[*time.ParseError](err); parsed || err != nil && strings.Contains(err.Error(), "Time.UnmarshalJSON") {
		return schema.NewError(schema.KindInvalidRequest, "malformed policy: field %.40q has a time that is none: write for example \"2026-01-02T15:04:05Z\"", name).
			WithReason(ReasonBadPolicy)
	}
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "malformed policy: field %.40q", name).WithReason(ReasonBadPolicy)
	}
	return nil
}

// formOf describes the JSON that a field of a type has.
func formOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return `a duration, for example "10m"`
	case t == reflect.TypeFor[time.Time]():
		return `a time, for example "2026-01-02T15:04:05Z"`
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Slice:
		return "a list"
	}
	return "an object"
}

// Digest identifies the content of a policy: the SHA-256 of its JSON, in lower-case hex. Policies
// that mean the same have the same digest, however their documents were written.
func (p Policy) Digest() string {
	raw, _ := json.Marshal(p.filled()) //nolint:errchkjson // a policy holds text, numbers and times
	return schema.SHA256Hex(raw)
}
