package health

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// CheckerHeartbeat is the checker of a node's silence. No reporter has it: the control plane finds the
// silence, and a heartbeat ends it.
const CheckerHeartbeat = "heartbeat"

// Repairs returns every repair, the least harmful first.
func Repairs() []Repair {
	return []Repair{RepairNone, RepairObserve, RepairRestart, RepairResetGPU, RepairReboot, RepairReplace, RepairRMA}
}

// Acts reports whether the repair changes something on the node.
func (r Repair) Acts() bool {
	return slices.Index(Repairs(), r) > slices.Index(Repairs(), RepairObserve)
}

// Faulty reports whether the condition is a fault of the node that a repair may cure. An unhealthy
// condition that is the workload's fault, or whose code is unknown, is not one.
func (c Condition) Faulty() bool { return c.Status == Unhealthy && c.Repair.Acts() }

// Lasted returns how long the checks have found the fault until a time: the time since Since without
// that in which the status was unknown. It is 0 if the condition is not unhealthy.
func (c Condition) Lasted(at time.Time) time.Duration {
	if c.Status != Unhealthy {
		return 0
	}
	return max(0, at.Sub(c.Since)-time.Duration(c.UnknownSeconds)*time.Second)
}

// Name names the condition: its checker, its component and its reason with the code.
func (c Condition) Name() string {
	words := []string{c.Checker, c.Component, c.Reason}
	if c.Code != 0 {
		words = append(words, strconv.Itoa(c.Code))
	}
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}

// Summary names the first of the faults with its repair, and says how many others there are. Its
// text was reported: escape it.
func Summary(faults []Condition) string {
	if len(faults) == 0 {
		return ""
	}
	first := faults[0].Name() + ", needs " + string(faults[0].Repair)
	if more := len(faults) - 1; more > 0 {
		first += ", and " + strconv.Itoa(more) + " more"
	}
	return first
}

// Thresholds returns the thresholds of checkers by their names.
func Thresholds[S any](checkers []Checker[S]) map[string]time.Duration {
	all := map[string]time.Duration{}
	for _, c := range checkers {
		all[c.Name()] = c.Threshold()
	}
	return all
}

// Faults returns the faulty conditions.
func (r Report) Faults() []Condition {
	return slices.DeleteFunc(slices.Clone(r.Conditions), func(c Condition) bool { return !c.Faulty() })
}

// Due returns the faulty conditions that have lasted for the threshold of their own checker. A checker
// without a threshold is never due: this reporter does not have it.
func (r Report) Due(thresholds map[string]time.Duration) []Condition {
	return slices.DeleteFunc(r.Faults(), func(c Condition) bool {
		threshold, ok := thresholds[c.Checker]
		return !ok || c.Lasted(r.At) < threshold
	})
}
