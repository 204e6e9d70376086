package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Misbehavior is what is wrong with a node; "" is nothing.
type Misbehavior string

// The misbehaviours.
const (
	// Slow works take between half and nine tenths of their time limit.
	Slow Misbehavior = "slow"
	// Silent takes a task and stops sending until its agent is
	// restarted: no poll, no progress, no result.
	Silent Misbehavior = "silent"
	// Duplicate posts each result twice, in parallel.
	Duplicate Misbehavior = "duplicate"
	// Late reports each result after its lease ended.
	Late Misbehavior = "late"
	// Flapping loses its connection and its agent every few seconds.
	Flapping Misbehavior = "flapping"
	// Dies stops once a task is in its journal, before the work is done, and is
	// restarted later.
	Dies Misbehavior = "dies"
)

// Misbehaviors returns all of them.
func Misbehaviors() []Misbehavior {
	return []Misbehavior{Slow, Silent, Duplicate, Late, Flapping, Dies}
}

// Share is how many nodes of a fleet have a misbehaviour: Count of them, or
// where Count is 0 the Fraction.
type Share struct {
	Misbehavior Misbehavior
	Count       int
	Fraction    float64 // of the fleet's size, at most 1
}

// of is the number of nodes; a share that is not nothing is at least one.
func (s Share) of(size int) int {
	if s.Count > 0 || s.Fraction == 0 {
		return s.Count
	}
	return max(1, int(math.Round(s.Fraction*float64(size))))
}

// ParseShares reads NAME=SHARE,…; a share is a percentage (5%), a fraction with
// a point in it (0.05) or a number of nodes (3). Errors are KindInvalidRequest
// with the reason misbehave.
func ParseShares(text string) ([]Share, error) {
	var out []Share
	for field := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(field) == "" {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		s := Share{Misbehavior: Misbehavior(name)}
		switch {
		case !slices.Contains(Misbehaviors(), s.Misbehavior):
			return nil, wrong("misbehave", "%q is no misbehaviour", name)
		case slices.ContainsFunc(out, func(o Share) bool { return o.Misbehavior == s.Misbehavior }):
			return nil, wrong("misbehave", "%s is named twice", name)
		}
		if err := s.parse(value); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (s *Share) parse(value string) (err error) {
	number, percent := strings.CutSuffix(value, "%")
	if percent || strings.Contains(value, ".") {
		s.Fraction, err = strconv.ParseFloat(number, 64)
		if percent {
			s.Fraction /= 100
		}
	} else {
		s.Count, err = strconv.Atoi(value)
	}
	if err != nil || s.Count < 0 || !(s.Fraction >= 0 && s.Fraction <= 1) {
		return wrong("misbehave", "%s=%s: want a percentage (5%%), a fraction (0.05) or a number of nodes (3)", s.Misbehavior, value)
	}
	return nil
}

// assign chooses who misbehaves how: as many as the shares say, the same ones
// for the same seed and size.
func assign(size int, shares []Share, seed uint64) ([]Misbehavior, error) {
	out := make([]Misbehavior, size)
	order := rand.New(rand.NewPCG(seed, 0)).Perm(size) //nolint:gosec // a draw that can be repeated
	for _, s := range shares {
		n := s.of(size)
		if n > len(order) {
			return nil, wrong("misbehave", "more nodes are to misbehave than the fleet of %d has", size)
		}
		for _, i := range order[:n] {
			out[i] = s.Misbehavior
		}
		order = order[n:]
	}
	return out, nil
}

// wrong is a mistake in what a fleet is asked for.
func wrong(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(reason).WithNext("gpuaas dev fleet --help")
}
