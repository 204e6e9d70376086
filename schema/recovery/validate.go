package recovery

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
)

const (
	maxEntries  = 200 // of one list of a policy
	maxFindings = 20  // in one message
	maxText     = 200 // characters of a text
)

// Rungs returns the rungs in the order of ladders.
func Rungs() []Rung { return []Rung{RungResetGPU, RungReboot, RungReplace, RungQuarantine} }

// Approvable reports whether the rung can wait for an approval. A quarantine ends no work.
func (r Rung) Approvable() bool { return r != RungQuarantine && slices.Contains(Rungs(), r) }

func approvable() []Rung {
	return slices.DeleteFunc(Rungs(), func(r Rung) bool { return !r.Approvable() })
}

// Validate checks a policy. Its error is KindInvalidRequest with ReasonBadPolicy and lists each field
// with a fault and its fix.
func (p Policy) Validate() error {
	f := &findings{}
	f.policy(p)
	if len(f.list) == 0 {
		return nil
	}
	list := f.list
	if len(list) > maxFindings {
		list = append(slices.Clone(list[:maxFindings]), fmt.Sprintf("and %d more", len(f.list)-maxFindings))
	}
	return schema.NewError(schema.KindInvalidRequest, "malformed policy: %s", strings.Join(list, "; ")).WithReason(ReasonBadPolicy)
}

// findings collects the faults of a policy.
type findings struct{ list []string }

func (f *findings) add(field, format string, args ...any) {
	f.list = append(f.list, field+" "+fmt.Sprintf(format, args...))
}

func (f *findings) policy(p Policy) {
	if p.Mode != ModeMonitor && p.Mode != ModeArmed {
		f.add("mode", "is %.40q: set it to %q or %q", string(p.Mode), ModeMonitor, ModeArmed)
	}
	f.ladders(p.Ladders)
	f.overrides(p.Repairs)
	f.texts("replace_classes", p.ReplaceClasses)
	f.texts("gpu_replace_classes", p.GPUReplaceClasses)
	if !f.budgets("budgets", p.Budgets) {
		f.add("budgets", "has none for the fleet: add {\"scope\": \"fleet\", \"count\": 5, \"percent\": 10}")
	}
	f.budgets("max_out", p.MaxOut)
	f.rules(p)
	f.within("boot_grace", p.BootGrace, 0, 24*time.Hour)
	f.number("samples", p.Samples, 1, 1000)
	f.within("threshold", p.Threshold, time.Minute, 7*24*time.Hour)
	f.thresholds(p.Thresholds)
	f.within("cooldown", p.Cooldown, 0, 7*24*time.Hour)
	f.windows(p.Windows)
	for i, r := range p.Approvals {
		if !r.Approvable() {
			f.add(fmt.Sprintf("approvals[%d]", i), "is %.40q: use one of %s", string(r), list(approvable()))
		}
	}
	f.texts("disabled_checkers", p.DisabledCheckers)
}

func (f *findings) ladders(all []Ladder) {
	f.length("ladders", len(all))
	for i, l := range all {
		field := fmt.Sprintf("ladders[%d]", i)
		f.match(field+".match", l.Match)
		if len(l.Rungs) == 0 {
			f.add(field+".rungs", "is empty: list at least one of %s", list(Rungs()))
		}
		last := -1
		for j, r := range l.Rungs {
			at := slices.Index(Rungs(), r)
			switch {
			case at < 0:
				f.rung(fmt.Sprintf("%s.rungs[%d]", field, j), r)
			case at <= last:
				f.add(fmt.Sprintf("%s.rungs[%d]", field, j), "is %q after %q: list each rung once, in the order %s", r, l.Rungs[j-1], list(Rungs()))
			}
			last = max(last, at)
		}
	}
}

func (f *findings) rung(field string, r Rung) {
	if !slices.Contains(Rungs(), r) {
		f.add(field, "is %.40q: use one of %s", string(r), list(Rungs()))
	}
}

func (f *findings) overrides(all []Override) {
	f.length("repairs", len(all))
	for i, o := range all {
		field := fmt.Sprintf("repairs[%d]", i)
		f.match(field+".match", o.Match)
		if len(o.Match.Checkers) == 0 {
			f.add(field+".match.checkers", "is empty: name the checkers, for example gpu_xid")
		}
		if !slices.Contains(health.Repairs(), o.Repair) {
			f.add(field+".repair", "is %.40q: use one of %s", string(o.Repair), list(health.Repairs()))
		}
	}
}

// budgets checks a list of budgets, and reports whether it has one for the fleet.
func (f *findings) budgets(name string, all []Budget) (fleet bool) {
	f.length(name, len(all))
	seen := map[string]bool{}
	for i, b := range all {
		field := fmt.Sprintf("%s[%d]", name, i)
		if !slices.Contains(scopes(), b.Scope) {
			f.add(field+".scope", "is %.40q: use one of %s", string(b.Scope), list(scopes()))
		}
		if b.Scope == ScopeFleet && b.Key != "" {
			f.add(field+".key", "is %.40q: remove it, the fleet has no key", b.Key)
		}
		f.text(field+".key", b.Key)
		f.number(field+".count", b.Count, 0, 1_000_000)
		f.number(field+".percent", b.Percent, 0, 100)
		if key := string(b.Scope) + "/" + b.Key; seen[key] {
			f.add(field, "repeats the scope and the key of another budget: keep one")
		} else {
			seen[key] = true
		}
	}
	return seen[string(ScopeFleet)+"/"]
}

// rules checks the rules for faults of many nodes and for repeated repairs.
func (f *findings) rules(p Policy) {
	f.number("breaker.nodes", p.Breaker.Nodes, 1, 1_000_000)
	f.number("breaker.percent", p.Breaker.Percent, 1, 100)
	f.within("breaker.within", p.Breaker.Within, time.Minute, 24*time.Hour)
	f.within("breaker.half_open_after", p.Breaker.HalfOpenAfter, time.Minute, 7*24*time.Hour)
	f.number("suspect.percent", p.Suspect.Percent, 1, 100)
	f.within("suspect.within", p.Suspect.Within, time.Minute, 30*24*time.Hour)
	f.length("suspect.trusted", len(p.Suspect.Trusted))
	for i, t := range p.Suspect.Trusted {
		if checker, reason, ok := strings.Cut(t, "/"); !ok || checker == "" || reason == "" || len(t) > maxText {
			f.add(fmt.Sprintf("suspect.trusted[%d]", i), "is %.80q: write checker/Reason", t)
		}
	}
	f.number("rack.percent", p.Rack.Percent, 1, 100)
	f.number("rack.nodes", p.Rack.Nodes, MinCorrelated, 1000)
	f.number("flapping.repairs", p.Flapping.Repairs, 1, 1000)
	f.within("flapping.within", p.Flapping.Within, time.Hour, LookBack)
}

func (f *findings) thresholds(all map[string]Duration) {
	f.length("thresholds", len(all))
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f.text("thresholds", name)
		f.within(fmt.Sprintf("thresholds[%.40q]", name), all[name], 0, 7*24*time.Hour)
	}
}

func (f *findings) windows(all []Window) {
	f.length("windows", len(all))
	for i, w := range all {
		field := fmt.Sprintf("windows[%d]", i)
		f.match(field+".match", w.Match)
		if m := w.Match; len(m.Checkers)+len(m.Reasons)+len(m.Codes)+len(m.Repairs) > 0 {
			f.add(field+".match", "selects faults: use only skus, classes, regions, racks, hosts and gpu")
		}
		if w.Reason == "" {
			f.add(field+".reason", "is empty: say what the window is for")
		}
		f.text(field+".reason", w.Reason)
		if w.Weekly != nil {
			if !w.Start.IsZero() || !w.End.IsZero() {
				f.add(field, "has both weekly and start or end: keep one")
			}
			f.weekly(field+".weekly", *w.Weekly)
		} else if w.Start.IsZero() || !w.End.After(w.Start) {
			f.add(field, "needs weekly, or an end after its start")
		}
	}
}

func (f *findings) weekly(field string, w Weekly) {
	if len(w.Days) == 0 || len(w.Days) > 7 {
		f.add(field+".days", "has %d entries: list 1 to 7 of %s", len(w.Days), list(weekdays()))
	}
	for i, d := range w.Days {
		if !slices.Contains(weekdays(), d) {
			f.add(fmt.Sprintf("%s.days[%d]", field, i), "is %.40q: use one of %s", d, list(weekdays()))
		}
	}
	if !regexp.MustCompile(`^([01][0-9]|2[0-3]):[0-5][0-9]$`).MatchString(w.At) {
		f.add(field+".at", "is %.40q: write a time of day in UTC, for example \"22:00\"", w.At)
	}
	f.within(field+".for", w.For, time.Minute, 24*time.Hour)
}

func (f *findings) match(field string, m Match) {
	f.texts(field+".skus", m.SKUs)
	f.texts(field+".classes", m.Classes)
	f.texts(field+".regions", m.Regions)
	f.texts(field+".racks", m.Racks)
	f.texts(field+".hosts", m.Hosts)
	f.texts(field+".checkers", m.Checkers)
	f.texts(field+".reasons", m.Reasons)
	f.length(field+".codes", len(m.Codes))
	f.length(field+".repairs", len(m.Repairs))
	for i, r := range m.Repairs {
		if !slices.Contains(health.Repairs(), r) {
			f.add(fmt.Sprintf("%s.repairs[%d]", field, i), "is %.40q: use one of %s", string(r), list(health.Repairs()))
		}
	}
}

func (f *findings) texts(field string, values []string) {
	f.length(field, len(values))
	for i, v := range values {
		if v == "" {
			f.add(fmt.Sprintf("%s[%d]", field, i), "is empty: remove it")
		}
		f.text(fmt.Sprintf("%s[%d]", field, i), v)
	}
}

// text checks that a text is one line of printable ASCII.
func (f *findings) text(field, v string) {
	printable := strings.IndexFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) < 0
	if len(v) > maxText || !printable {
		f.add(field, "is not one line of at most %d printable ASCII characters", maxText)
	}
}

func (f *findings) length(field string, n int) {
	if n > maxEntries {
		f.add(field, "has %d entries: at most %d are allowed", n, maxEntries)
	}
}

func (f *findings) number(field string, v, low, high int) {
	if v < low || v > high {
		f.add(field, "is %d: set it to %d to %d", v, low, high)
	}
}

func (f *findings) within(field string, v Duration, low, high time.Duration) {
	if time.Duration(v) < low || time.Duration(v) > high {
		f.add(field, "is %s: set it to %s to %s", v, brief(low), brief(high))
	}
}

// list joins names for a message.
func list[S ~string](names []S) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = string(n)
	}
	return strings.Join(texts, ", ")
}
