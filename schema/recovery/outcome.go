package recovery

import (
	"cmp"
	"maps"
	"slices"
)

// The outcomes of an attempt.
const (
	OutcomeCured    = "cured"     // verified as healthy
	OutcomeNotCured = "not_cured" // the rung was done, and the fault is still there
	OutcomeFailed   = "failed"    // the rung could not be done
	OutcomeUnknown  = "unknown"   // whether the rung was done is not known
	OutcomeNotBegun = "not_begun" // the repair ended before the rung
)

// OutcomeCount counts how the attempts with one rung for one kind of fault on one SKU ended.
type OutcomeCount struct {
	Checker  string `json:"checker"`
	Reason   string `json:"reason"`
	Code     int    `json:"code,omitempty"`
	SKU      string `json:"sku"`
	Rung     Rung   `json:"rung"`
	Cured    int    `json:"cured"`
	NotCured int    `json:"not_cured"`
	Failed   int    `json:"failed"`
	Unknown  int    `json:"unknown"`
}

// Outcomes counts the attempts that began and ended, sorted by fault, SKU and rung. An attempt that is listed
// twice counts once.
func Outcomes(attempts []Attempt) []OutcomeCount {
	type id struct {
		operation string
		rung      Rung
	}
	counted := map[id]bool{}
	counts := map[OutcomeCount]*OutcomeCount{}
	for _, a := range attempts {
		key := id{a.OperationID, a.Rung}
		if a.EndedAt.IsZero() || a.Outcome == OutcomeNotBegun || counted[key] {
			continue
		}
		counted[key] = true
		kind := OutcomeCount{Checker: a.Fault.Checker, Reason: a.Fault.Reason, Code: a.Fault.Code, SKU: a.SKU, Rung: a.Rung}
		if counts[kind] == nil {
			counts[kind] = new(OutcomeCount)
			*counts[kind] = kind
		}
		counts[kind].add(a.Outcome)
	}
	all := make([]OutcomeCount, 0, len(counts))
	for c := range maps.Values(counts) {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b OutcomeCount) int {
		return cmp.Or(cmp.Compare(a.Checker, b.Checker), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.SKU, b.SKU), cmp.Compare(slices.Index(rungs(), a.Rung), slices.Index(rungs(), b.Rung)))
	})
	return all
}

func (c *OutcomeCount) add(outcome string) {
	switch outcome {
	case OutcomeCured:
		c.Cured++
	case OutcomeNotCured:
		c.NotCured++
	case OutcomeFailed:
		c.Failed++
	default:
		c.Unknown++
	}
}
