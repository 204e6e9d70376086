package cause

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/diagnosis"
)

// Lookback is how far back changes are read by default, and MaxLookback the largest period.
const (
	Lookback    = 24 * time.Hour
	MaxLookback = 7 * 24 * time.Hour
)

// Candidate is a possible cause.
type Candidate struct {
	// Cause is a stable code, for example node_silent.
	Cause string `json:"cause"`
	// Summary describes the cause in a sentence without a period.
	Summary string `json:"summary"`
	// Confidence orders the candidates: 0 to 1.
	Confidence float64 `json:"confidence"`
	// Reasoning lists the facts behind it.
	Reasoning []string        `json:"reasoning"`
	Owner     diagnosis.Owner `json:"owner"`
	// Next is a command or an instruction.
	Next string `json:"next"`
}

// Report is the probable cause of a park, or of the state of a node.
type Report struct {
	NodeID      string `json:"node_id"`
	Host        string `json:"host"`
	OperationID string `json:"operation_id,omitempty"`
	// Reason and Since are those of the park, empty without one.
	Reason string     `json:"reason,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	// At is when the evidence was read.
	At            time.Time `json:"at"`
	LookbackHours int       `json:"lookback_hours"`
	// Candidates are sorted by confidence. TopCandidate, Confidence and Reasoning are those of the
	// first one, empty without one.
	Candidates   []Candidate `json:"candidates"`
	TopCandidate string      `json:"top_candidate,omitempty"`
	Confidence   float64     `json:"confidence"`
	Reasoning    []string    `json:"reasoning"`
	// Probes are the questions that were asked.
	Probes []diagnosis.Check `json:"probes"`
	// Changes are what changed in the lookback, newest first, at most MaxChanges.
	Changes []Change `json:"changes"`
}

// Top returns the first candidate, nil if there is none.
func (r *Report) Top() *Candidate {
	if r == nil || len(r.Candidates) == 0 {
		return nil
	}
	return &r.Candidates[0]
}

// Explain ranks the possible causes of what the evidence shows.
func Explain(e Evidence) Report {
	r := Report{NodeID: e.Node.ID, Host: e.Node.Host, OperationID: e.Park.OperationID, Reason: e.Park.Reason, At: e.At,
		LookbackHours: int(cmp.Or(e.Lookback, Lookback) / time.Hour), Candidates: []Candidate{}, Reasoning: []string{}, Probes: e.probes(),
		Changes: append([]Change{}, e.Changes...)}
	if !e.Park.Since.IsZero() {
		r.Since = &e.Park.Since
	}
	for _, rule := range []func(Evidence) []Candidate{controlPlane, identity, silence, reported, unhealthy, provider, workloads, rejected, many, changed} {
		r.Candidates = append(r.Candidates, rule(e)...)
	}
	slices.SortStableFunc(r.Candidates, func(a, b Candidate) int { return cmp.Compare(b.Confidence, a.Confidence) })
	if top := r.Top(); top != nil {
		r.TopCandidate, r.Confidence, r.Reasoning = top.Cause, top.Confidence, top.Reasoning
	}
	return r
}
