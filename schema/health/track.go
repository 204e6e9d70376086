package health

import (
	"cmp"
	"slices"
	"time"
)

// MaxGap is the longest time between two reports for which a fault in both counts as having lasted.
// Nothing is known about a longer gap, for example while the reporter was stopped.
const MaxGap = 5 * time.Minute

// Finding is what one checker found on one sample.
type Finding struct {
	Checker string
	Results []Result
}

// Run returns the findings of the checkers that apply to the sample.
func Run[S any](checkers []Checker[S], sample S) []Finding {
	var found []Finding
	for _, c := range checkers {
		if c.Applies(sample) {
			found = append(found, Finding{Checker: c.Name(), Results: c.Check(sample)})
		}
	}
	return found
}

// Tracker turns the findings of successive samples into reports: for each checker and component it
// keeps since when and how often the status was seen. Its only state is the last report, so a
// reporter that stores that report continues after a restart. It is not safe for concurrent use.
type Tracker struct{ last Report }

// NewTracker returns a tracker that continues from the reporter's last report. The zero Report
// starts without a history.
func NewTracker(last Report) *Tracker { return &Tracker{last: last} }

// Last returns the last report.
func (t *Tracker) Last() Report { return t.last }

// Observe returns the report of the findings at a time. For each checker and component:
//
//   - Since is when the status began. It restarts with each change of the status, not of the reason.
//   - An unknown result does not end a fault: the condition is unknown and has the fault's beginning
//     in FaultSince. The time until the next known result is not part of what Lasted returns.
//   - A component without a result has no condition: the checker no longer finds it or no longer
//     applies. This also ends the events of an earlier boot.
//   - An unknown result for the node makes the faults of the checker's components unknown too.
//
// The report has at most MaxConditions conditions, the unhealthy ones first.
func (t *Tracker) Observe(at time.Time, bootID string, found []Finding) Report {
	before := map[[2]string]Condition{}
	for _, c := range t.last.Conditions {
		before[[2]string{c.Checker, c.Component}] = c
	}
	gap := t.gap(at)
	seen := map[[2]string]bool{}
	conditions := []Condition{}
	add := func(now Condition) {
		key := [2]string{now.Checker, now.Component}
		if !seen[key] {
			seen[key] = true
			conditions = append(conditions, follow(before[key], now, at, gap))
		}
	}
	for _, f := range found {
		for _, r := range f.Results {
			add(r.condition(f.Checker))
		}
		for _, now := range t.hidden(f) {
			add(now)
		}
	}
	slices.SortStableFunc(conditions, order)
	t.last = Report{At: at, BootID: bootID, Conditions: slices.Clip(conditions[:min(len(conditions), MaxConditions)])}
	return t.last
}

// hidden returns unknown conditions for the components that had a fault, if the checker's result for
// the whole node is unknown: it could not look at them.
func (t *Tracker) hidden(f Finding) (conditions []Condition) {
	i := slices.IndexFunc(f.Results, func(r Result) bool { return r.Component == "" && r.Status == Unknown })
	if i < 0 {
		return nil
	}
	for _, c := range t.last.Conditions {
		if c.Checker == f.Checker && c.Component != "" && c.open() {
			now := f.Results[i].condition(f.Checker)
			now.Component = c.Component
			conditions = append(conditions, now)
		}
	}
	return conditions
}

// open reports whether the condition is a fault, or an unknown one that interrupts a fault.
func (c Condition) open() bool { return c.Status == Unhealthy || !c.FaultSince.IsZero() }

// gap returns the time since the last report if it is too long to say what happened in it.
func (t *Tracker) gap(at time.Time) time.Duration {
	if gap := at.Sub(t.last.At); !t.last.At.IsZero() && gap > MaxGap {
		return gap
	}
	return 0
}

// follow returns the condition now, which has neither Since nor Samples yet, as the successor of the
// one before. The zero Condition is that of a new component.
func follow(before, now Condition, at time.Time, gap time.Duration) Condition {
	now.Since, now.Samples = at, 1
	if before.Status == now.Status {
		now.Since, now.Samples = before.Since, before.Samples+1
	}
	switch {
	case now.Status == Healthy || !before.open():
	case now.Status == Unknown && before.Status == Unhealthy:
		now.FaultSince, now.FaultSamples = before.Since, before.Samples
		now.UnknownSeconds = before.UnknownSeconds + seconds(gap)
	case now.Status == Unknown:
		now.FaultSince, now.FaultSamples, now.UnknownSeconds = before.FaultSince, before.FaultSamples, before.UnknownSeconds
	case before.Status == Unknown:
		now.Since, now.Samples = before.FaultSince, before.FaultSamples+1
		now.UnknownSeconds = before.UnknownSeconds + seconds(at.Sub(before.Since))
	default:
		now.UnknownSeconds = before.UnknownSeconds + seconds(gap)
	}
	return now
}

// seconds rounds up, so that unknown time is never counted as a fault.
func seconds(d time.Duration) int64 {
	return max(0, int64((d+time.Second-1)/time.Second))
}

// condition returns the result as a condition without a time. Texts are cut to the limits of a
// report.
func (r Result) condition(checker string) Condition {
	c := Condition{
		Checker: checker, Component: printable(r.Component, MaxComponent), Status: r.Status,
		Reason: reasonOr(r.Reason, "Unspecified"), Code: r.Code, Detail: printable(r.Detail, MaxDetail),
	}
	if r.Status == Unhealthy {
		c.Repair = cmp.Or(r.Repair, RepairObserve)
	}
	return c
}

// order sorts conditions: those that need the most harmful repair first, then by name.
func order(a, b Condition) int {
	return cmp.Or(
		cmp.Compare(urgency(b), urgency(a)),
		cmp.Compare(a.Checker, b.Checker),
		cmp.Compare(a.Component, b.Component),
	)
}

func urgency(c Condition) int {
	switch c.Status {
	case Unhealthy:
		return 2 + slices.Index(Repairs(), c.Repair)
	case Unknown:
		return 1
	}
	return 0
}

// printable returns s with at most limit characters, and "?" for each that is not printable ASCII.
func printable(s string, limit int) string {
	s = s[:min(len(s), limit)]
	out := []byte(s)
	for i, c := range out {
		if c < ' ' || c > '~' {
			out[i] = '?'
		}
	}
	return string(out)
}
