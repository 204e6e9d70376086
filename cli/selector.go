package cli

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// selector chooses nodes: each of its terms must match.
type selector []condition

// condition is one KEY=VALUE of a selector, or KEY!=VALUE when not.
type condition struct {
	key, value string
	not        bool
}

func selectorKeys() []string { return []string{"region", "sku", "state", "issuer", "host"} }

// parseSelector reads terms that commas separate. A part that begins with no
// known key belongs to the value before it, since issuers hold commas.
func parseSelector(texts []string) (selector, error) {
	var s selector
	for _, text := range texts {
		first := len(s)
		for part := range strings.SplitSeq(text, ",") {
			t, ok := parseCondition(part)
			switch {
			case ok:
				s = append(s, t)
			case len(s) > first:
				s[len(s)-1].value += "," + part
			default:
				return nil, usagef(reissueHelp, "--selector %q: want KEY=VALUE[,KEY=VALUE...] with the keys %s", text, strings.Join(selectorKeys(), ", "))
			}
		}
	}
	for _, t := range s {
		if err := t.check(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// reissueHelp is the command that has selectors.
const reissueHelp = "gpuaas node reissue-enrollment"

func parseCondition(text string) (t condition, ok bool) {
	key, value, found := strings.Cut(text, "=")
	key, not := strings.CutSuffix(strings.TrimSpace(key), "!")
	return condition{key: key, value: value, not: not}, found && slices.Contains(selectorKeys(), key)
}

// check refuses a value that no node can have.
func (t condition) check() error {
	if t.value == "" {
		return usagef(reissueHelp, "--selector %s=: want a value", t.key)
	}
	if t.key == "state" && !lifecycle.NodeState(t.value).Valid() {
		return usagef(reissueHelp, "--selector state=%s: there is no such state", t.value)
	}
	if _, err := path.Match(t.value, ""); t.key == "host" && err != nil {
		return usagef(reissueHelp, "--selector host=%s: not a pattern", t.value)
	}
	return nil
}

func (s selector) matches(n wire.NodeView) bool {
	return !slices.ContainsFunc(s, func(t condition) bool { return !t.matches(n) })
}

// matches compares one fact of the node. A node without a certificate has no
// issuer, so that neither = nor != matches.
func (t condition) matches(n wire.NodeView) bool {
	var is bool
	switch t.key {
	case "region":
		is = n.RegionCode == t.value
	case "sku":
		is = n.SKU == t.value
	case "state":
		is = string(n.State) == t.value
	case "host":
		is, _ = path.Match(t.value, n.Host)
	case "issuer":
		if n.Identity == nil {
			return false
		}
		is = n.Identity.Issuer == t.value
	}
	return is != t.not
}
