package adminapi

import (
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Selector selects nodes by their labels and registered properties, in the
// grammar of kubectl: k=v, k==v, k!=v, k in (a,b), k notin (a,b), k, !k, with
// commas between. Every requirement must hold. The zero value selects every node.
type Selector []Requirement

// Requirement is one condition of a Selector.
type Requirement struct {
	Key string
	Op  Op
	// Values are the alternatives of In and NotIn.
	Values []string
}

// Op is how a Requirement compares.
type Op string

// The operators. As in Kubernetes, NotIn also holds for a node without the key.
const (
	OpIn        Op = "in"
	OpNotIn     Op = "notin"
	OpExists    Op = "exists"
	OpNotExists Op = "!"
)

// PropertyKeys are the keys that name a registered property of the node instead
// of a label. A label must not have such a key.
func PropertyKeys() []string { return []string{"region", "sku", "state", "provider", "class", "host"} }

// Bounds of selectors and labels.
const (
	maxRequirements = 20
	maxLabels       = 64
	maxLabelText    = 63
)

// ParseSelector parses text. Errors are KindInvalidRequest with reason
// bad_selector and name the part that is wrong.
func ParseSelector(text string) (Selector, error) {
	var s Selector
	for _, part := range splitSelector(text) {
		part = strings.TrimSpace(part)
		if part == "" {
			if strings.TrimSpace(text) == "" {
				return nil, nil
			}
			return nil, badSelector("there is an empty requirement")
		}
		r, err := parseRequirement(part)
		if err != nil {
			return nil, err
		}
		s = append(s, r)
	}
	if len(s) > maxRequirements {
		return nil, badSelector("there are more than 20 requirements")
	}
	return s, nil
}

// splitSelector splits at the commas outside of parentheses.
func splitSelector(text string) []string {
	var out []string
	depth, from := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth <= 0 {
				out = append(out, text[from:i])
				from = i + 1
			}
		}
	}
	return append(out, text[from:])
}

func parseRequirement(text string) (Requirement, error) {
	if key, ok := strings.CutPrefix(text, "!"); ok && !strings.Contains(key, "=") {
		return requirement(strings.TrimSpace(key), OpNotExists)
	}
	if key, value, ok := strings.Cut(text, "!="); ok {
		return requirement(strings.TrimSpace(key), OpNotIn, strings.TrimSpace(value))
	}
	if key, value, ok := strings.Cut(text, "="); ok {
		return requirement(strings.TrimSpace(key), OpIn, strings.TrimSpace(strings.TrimPrefix(value, "=")))
	}
	head, list, ok := strings.Cut(text, "(")
	if !ok {
		return requirement(text, OpExists)
	}
	list, closed := strings.CutSuffix(list, ")")
	words := strings.Fields(head)
	if !closed || len(words) != 2 || words[1] != string(OpIn) && words[1] != string(OpNotIn) {
		return Requirement{}, badSelector("want KEY in (A,B) or KEY notin (A,B)")
	}
	var values []string
	for v := range strings.SplitSeq(list, ",") {
		values = append(values, strings.TrimSpace(v))
	}
	return requirement(words[0], Op(words[1]), values...)
}

func requirement(key string, op Op, values ...string) (Requirement, error) {
	if !validLabelKey(key) {
		return Requirement{}, badSelector("a key must be 1 to 63 of a-z A-Z 0-9 . _ / - and begin with a letter or digit")
	}
	if len(values) > maxValues {
		return Requirement{}, badSelector("there are too many values")
	}
	property := slices.Contains(PropertyKeys(), key)
	if property && len(values) == 0 {
		return Requirement{}, badSelector(key + " is a property that every node has: compare it with a value")
	}
	for _, v := range values {
		if !validLabelValue(v) && !(key == "host" && validHostPattern(v)) {
			return Requirement{}, badSelector("a value must be at most 63 of a-z A-Z 0-9 . _ -")
		}
	}
	return Requirement{Key: key, Op: op, Values: values}, nil
}

func badSelector(why string) error {
	return schema.NewError(schema.KindInvalidRequest, "selector: %s", why).WithReason("bad_selector").
		WithNext("write a selector such as rack=r7,tier!=test,zone in (a,b),!reserved")
}

func validLabelKey(s string) bool {
	return s != "" && len(s) <= maxLabelText && alphanumeric(s[0]) && strings.Trim(s, labelChars+"/") == ""
}

func validLabelValue(s string) bool {
	return len(s) <= maxLabelText && strings.Trim(s, labelChars) == ""
}

// validHostPattern takes a host name with the wildcards * and ?.
func validHostPattern(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, labelChars+"*?:") == ""
}

const labelChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// checkLabels refuses labels that no selector could name.
func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return badField("labels", "must be at most 64")
	}
	for k, v := range labels {
		if err := checkLabelKey(k); err != nil {
			return err
		}
		if !validLabelValue(v) {
			return badField("labels", "must have values of at most 63 of a-z A-Z 0-9 . _ -")
		}
	}
	return nil
}

func checkLabelKey(key string) error {
	switch {
	case !validLabelKey(key):
		return badField("labels", "must have keys of 1 to 63 of a-z A-Z 0-9 . _ / - that begin with a letter or digit")
	case slices.Contains(PropertyKeys(), key):
		return badField("labels", "must not have the key "+key+", which names a property of the node")
	}
	return nil
}
