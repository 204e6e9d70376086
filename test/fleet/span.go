package fleet

import (
	"math/rand/v2"
	"strings"
	"time"
)

// Span is a range of durations, uniformly distributed.
type Span struct{ Min, Max time.Duration }

// ParseSpan reads 200ms or 100ms..2s. Errors are KindInvalidRequest with the
// reason span.
func ParseSpan(text string) (Span, error) {
	low, high, ranged := strings.Cut(text, "..")
	if !ranged {
		high = low
	}
	shortest, lowErr := time.ParseDuration(low)
	longest, highErr := time.ParseDuration(high)
	s := Span{shortest, longest}
	if lowErr != nil || highErr != nil || s.Min < 0 || s.Max < s.Min {
		return Span{}, invalid("span", "%q: want a duration (200ms) or two (100ms..2s)", text)
	}
	return s, nil
}

// draw returns a random duration of the range.
func (s Span) draw() time.Duration {
	return s.Min + rand.N(s.Max-s.Min+1) //nolint:gosec // the value need not be unpredictable
}

// around returns the range from half of d to one and a half of d.
func around(d time.Duration) Span { return Span{d / 2, d + d/2} }
