package fleet

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// Misbehavior is the way in which a node misbehaves; "" is none.
type Misbehavior string

// The kinds of misbehavior.
const (
	// Slow nodes need between half and nine tenths of a task's time limit.
	Slow Misbehavior = "slow"
	// Silent nodes begin a task and then send nothing until their agent is
	// restarted: no poll, no progress, no result.
	Silent Misbehavior = "silent"
	// Duplicate nodes post each result twice, in parallel.
	Duplicate Misbehavior = "duplicate"
	// Late nodes report each result after its lease has expired.
	Late Misbehavior = "late"
	// Flapping nodes lose their connection and agent every few seconds.
	Flapping Misbehavior = "flapping"
	// Dies stops a node's agent once a task is in the journal, before the work is
	// done, and restarts it later.
	Dies Misbehavior = "dies"
)

// Misbehaviors returns all of them.
func Misbehaviors() []Misbehavior {
	return []Misbehavior{Slow, Silent, Duplicate, Late, Flapping, Dies}
}

// Share is the number of nodes that misbehave in one way: Count, or the Fraction if
// Count is 0.
type Share struct {
	Misbehavior Misbehavior
	Count       int
	Fraction    float64 // of the fleet's size, at most 1
}

// of returns the number of nodes. A fraction above 0 is at least one node.
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
			return nil, invalid("misbehave", "%q is not a misbehavior", name)
		case slices.ContainsFunc(out, func(o Share) bool { return o.Misbehavior == s.Misbehavior }):
			return nil, invalid("misbehave", "%s is named twice", name)
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
		return invalid("misbehave", "%s=%s: want a percentage (5%%), a fraction (0.05) or a number of nodes (3)", s.Misbehavior, value)
	}
	return nil
}

// assign selects the nodes that misbehave, the same ones for the same seed, size and
// shares.
func assign(size int, shares []Share, seed uint64) ([]Misbehavior, error) {
	out := make([]Misbehavior, size)
	order := rand.New(rand.NewPCG(seed, 0)).Perm(size) //nolint:gosec // it must be repeatable
	for _, s := range shares {
		n := s.of(size)
		if n > len(order) {
			return nil, invalid("misbehave", "the shares exceed the fleet's size, %d", size)
		}
		for _, i := range order[:n] {
			out[i] = s.Misbehavior
		}
		order = order[n:]
	}
	return out, nil
}

// invalid returns an error in the configuration of a fleet.
func invalid(reason, format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...).WithReason(reason).WithNext("gpuaas dev fleet --help")
}
