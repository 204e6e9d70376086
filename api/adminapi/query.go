package adminapi

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Page says which page of a list to return.
type Page struct {
	// Limit is the number of rows, 1 to wire.MaxPage.
	Limit int
	// After is the sort key of the last row of the page before; the first page
	// when empty. It was made by the Store, as the next key of a list.
	After []string
}

// NodeQuery selects nodes, in order of host name. Conditions that are empty
// match every node; several values of one condition are alternatives.
type NodeQuery struct {
	Page
	States    []lifecycle.NodeState
	SKUs      []string
	Regions   []string
	Providers []string
	Issuers   []string // of the certificate in use
	// HostPrefix matches the beginning of the host name, HostPattern all of it
	// with * for any text and ? for one character.
	HostPrefix  string
	HostPattern string
	Selector    Selector
	// Removed includes nodes that were removed.
	Removed bool
	// View says which facts the rows need.
	View View
}

// View is how much of a node a list returns.
type View string

// The views. Each includes what the one before has.
const (
	ViewName    View = "name"    // id, host and state
	ViewSummary View = "summary" // without facts, workloads and certificates
	ViewFull    View = "full"
)

// OperationQuery selects operations, newest first.
type OperationQuery struct {
	Page
	NodeID   string
	Actions  []lifecycle.Action
	Statuses []lifecycle.OperationState
	// WaitingOn and Reasons match parked operations.
	WaitingOn []lifecycle.Attention
	Reasons   []string
	// Open leaves out operations that ended.
	Open bool
	// Holds, when set, selects operations that hold their node, or those that do
	// not: reissues.
	Holds *bool
	// Since leaves out operations that started before; none when zero.
	Since    time.Time
	Selector Selector
	// Stuck selects operations that are parked, overdue or abandoned, oldest first.
	Stuck bool
}

// TaskQuery selects tasks, newest first.
type TaskQuery struct {
	Page
	NodeID   string
	Statuses []task.Status
	Types    []task.Type
	Open     bool // leaves out tasks that ended; a lost one has not
	Since    time.Time
}

// AuditQuery selects audit events of all streams, newest first.
type AuditQuery struct {
	Page
	Stream  string
	Actions []string
	Actors  []string
	Results []string
	Since   time.Time
}

// params reads query parameters and remembers the first fault.
type params struct {
	values url.Values
	known  map[string]bool
	err    error
}

func readParams(u *url.URL) *params {
	return &params{values: u.Query(), known: map[string]bool{}}
}

func (p *params) fail(name, why string) {
	if p.err == nil {
		p.err = badField(name, why)
	}
}

// one returns a parameter that must not be repeated.
func (p *params) one(name string) string {
	p.known[name] = true
	v := p.values[name]
	if len(v) > 1 {
		p.fail(name, "must be given once")
	}
	return p.values.Get(name)
}

// maxValues bounds the alternatives of one condition.
const maxValues = 50

// list returns the values of a repeatable parameter; commas separate values too.
func (p *params) list(name string) []string {
	p.known[name] = true
	var out []string
	for _, text := range p.values[name] {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	if len(out) > maxValues {
		p.fail(name, "must have at most "+strconv.Itoa(maxValues)+" values")
	}
	return out
}

// repeated is list for values that may hold commas.
func (p *params) repeated(name string) []string {
	p.known[name] = true
	return p.values[name]
}

func (p *params) flag(name string) bool {
	text := p.one(name)
	if text == "" {
		return false
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		p.fail(name, "must be true or false")
	}
	return v
}

// optionalFlag is nil when the parameter is not given.
func (p *params) optionalFlag(name string) *bool {
	if p.one(name) == "" {
		return nil
	}
	v := p.flag(name)
	return &v
}

func (p *params) time(name string) time.Time {
	text := p.one(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		p.fail(name, "must be a time such as 2026-03-01T12:00:00Z")
	}
	return t
}

// number reads a whole number from low to most.
func (p *params) number(name string, standard, low, most int64) int64 {
	text := p.one(name)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > most {
		p.fail(name, "must be a number from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(most, 10))
	}
	return n
}

// page reads limit and page_token. keys is how many values the list's sort key
// has.
func (p *params) page(keys int) Page {
	page := Page{Limit: int(p.number("limit", wire.DefaultPage, 1, wire.MaxPage))}
	text := p.one("page_token")
	if text == "" {
		return page
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(raw, &page.After) != nil || len(page.After) != keys {
		p.fail("page_token", "must be the next_page_token of the page before")
	}
	return page
}

// pageToken is the token of the page after the sort key; empty for none.
func pageToken(next []string) string {
	if len(next) == 0 {
		return ""
	}
	raw, _ := json.Marshal(next) //nolint:errchkjson // strings always encode
	return base64.RawURLEncoding.EncodeToString(raw)
}

func (p *params) selector() Selector {
	s, err := ParseSelector(strings.Join(p.repeated("selector"), ","))
	if err != nil && p.err == nil {
		p.err = err
	}
	return s
}

// check returns the first fault. A parameter that the endpoint does not have is
// one, since a filter that is ignored would return too much.
func (p *params) check() error {
	for name := range p.values {
		if !p.known[name] && p.err == nil {
			p.err = schema.NewError(schema.KindInvalidRequest, "unknown query parameter %q", clipName(name)).WithReason("unknown_parameter")
		}
	}
	return p.err
}

func clipName(s string) string {
	if len(s) > 40 || !plainText(s, 40) {
		return "…"
	}
	return s
}

// values reads a list parameter whose values form a closed set.
func closed[T ~string](p *params, name string, all []T) []T {
	var out []T
	for _, text := range p.list(name) {
		if !slices.Contains(all, T(text)) {
			p.fail(name, "must be one of "+joined(all))
			return nil
		}
		out = append(out, T(text))
	}
	return out
}

func joined[T ~string](all []T) string {
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = string(v)
	}
	return strings.Join(texts, ", ")
}
