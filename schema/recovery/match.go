package recovery

import (
	"slices"
	"strings"
	"time"
)

// scopes returns the scopes, the widest first.
func scopes() []Scope { return []Scope{ScopeFleet, ScopeRegion, ScopeSKU, ScopeRack} }

// key returns the node's key in a scope; empty if it has none.
func (n Node) key(s Scope) string {
	switch s {
	case ScopeSKU:
		return n.SKU
	case ScopeRack:
		return n.Rack
	case ScopeRegion:
		return n.Region
	}
	return ""
}

// node reports whether the match selects the node.
func (m Match) node(n Node) bool {
	return has(m.SKUs, n.SKU) && has(m.Classes, n.Class) && has(m.Regions, n.Region) &&
		has(m.Racks, n.Rack) && has(m.Hosts, n.Host) && (m.GPU == nil || *m.GPU == (n.GPUs > 0))
}

// fault reports whether the match selects the fault of a node.
func (m Match) fault(n Node, f Fault) bool {
	return m.node(n) && has(m.Checkers, f.Checker) && has(m.Reasons, f.Reason) && has(m.Codes, f.Code) && has(m.Repairs, f.Repair)
}

// has reports whether v is in list or list is empty.
func has[T comparable](list []T, v T) bool { return len(list) == 0 || slices.Contains(list, v) }

// weekdays returns the names of the days, by their time.Weekday.
func weekdays() []string { return []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} }

// covers reports whether the window includes the time.
func (w Window) covers(at time.Time) bool {
	if w.Weekly != nil {
		return w.Weekly.covers(at.UTC())
	}
	return !at.Before(w.Start) && at.Before(w.End)
}

// covers looks at the beginnings on the day and on the day before: a window lasts 24 hours at most.
func (w Weekly) covers(at time.Time) bool {
	for _, back := range []int{0, 1} {
		day := at.AddDate(0, 0, -back)
		if !slices.Contains(w.Days, weekdays()[day.Weekday()]) {
			continue
		}
		clock, err := time.Parse("15:04", w.At)
		if err != nil {
			return true // a malformed window stops repairs
		}
		begin := time.Date(day.Year(), day.Month(), day.Day(), clock.Hour(), clock.Minute(), 0, 0, time.UTC)
		if !at.Before(begin) && at.Before(begin.Add(time.Duration(w.For))) {
			return true
		}
	}
	return false
}

// Window returns the maintenance window that covers the node.
func (p Policy) Window(n Node, at time.Time) (Window, bool) {
	i := slices.IndexFunc(p.Windows, func(w Window) bool { return w.Match.node(n) && w.covers(at) })
	if i < 0 {
		return Window{}, false
	}
	return p.Windows[i], true
}

// trusted reports whether an operator confirmed the reason of a fault.
func (s Suspect) trusted(f Fault) bool {
	return slices.ContainsFunc(s.Trusted, func(t string) bool {
		checker, reason, _ := strings.Cut(t, "/")
		return checker == f.Checker && reason == f.Reason
	})
}
