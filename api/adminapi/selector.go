package adminapi

import (
	"regexp"
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

var (
	// requirementForm has the groups !, key, comparison, value, set operator, set.
	requirementForm = regexp.MustCompile(`^(!?)\s*([^\s=!(),]+)\s*(?:(=|==|!=)\s*([^\s=!(),]*)|\s(in|notin)\s*\(([^()]*)\))?$`)
	// listForm matches one requirement: a comma in parentheses does not end it.
	listForm = regexp.MustCompile(`(?:[^,(]|\([^)]*\)?)*`)
)

// ParseSelector parses text. Errors are KindInvalidRequest with reason
// bad_selector.
func ParseSelector(text string) (Selector, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	parts := listForm.FindAllString(text, -1)
	if len(parts) > maxRequirements {
		return nil, badSelector("there are more than 20 requirements")
	}
	var s Selector
	for _, part := range parts {
		r, err := parseRequirement(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		s = append(s, r)
	}
	return s, nil
}

func parseRequirement(text string) (Requirement, error) {
	m := requirementForm.FindStringSubmatch(text)
	if len(m) == 0 || m[1] != "" && m[3]+m[5] != "" {
		return Requirement{}, badSelector("a requirement is KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (A,B) or KEY notin (A,B)")
	}
	r := Requirement{Key: m[2], Op: OpExists}
	switch {
	case m[5] != "":
		r.Op = Op(m[5])
		for v := range strings.SplitSeq(m[6], ",") {
			r.Values = append(r.Values, strings.TrimSpace(v))
		}
	case m[3] == "!=":
		r.Op, r.Values = OpNotIn, []string{m[4]}
	case m[3] != "":
		r.Op, r.Values = OpIn, []string{m[4]}
	case m[1] != "":
		r.Op = OpNotExists
	}
	return r, r.check()
}

func (r Requirement) check() error {
	switch {
	case !labelKeyForm.MatchString(r.Key):
		return badSelector("a key must be 1 to 63 of a-z A-Z 0-9 . _ / - and begin with a letter or digit")
	case len(r.Values) > maxValues:
		return badSelector("there are too many values")
	case len(r.Values) == 0 && slices.Contains(PropertyKeys(), r.Key):
		return badSelector(r.Key + " is a property that every node has: compare it with a value")
	}
	for _, v := range r.Values {
		if !labelValueForm.MatchString(v) && (r.Key != "host" || !patternForm.MatchString(v)) {
			return badSelector("a value must be at most 63 of a-z A-Z 0-9 . _ -")
		}
	}
	return nil
}

func badSelector(why string) error {
	return schema.NewError(schema.KindInvalidRequest, "selector: %s", why).WithReason("bad_selector").
		WithNext("write a selector such as rack=r7,tier!=test,zone in (a,b),!reserved")
}
