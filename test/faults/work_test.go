package faults_test

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	shiftsFlag = flag.Int("shifts", 150, "how many seeded operations with lost calls and deaths between their commits")
	shiftFlag  = flag.Uint64("shift", 0, "replay this seed alone, with its trace")
)

// TestSeededWork lets operations give tasks to a node while worker, API, relay
// and Temporal die between each two steps of a hand-over and of a result, and
// leases end. What destroys is begun at most once, no result is lost, and the
// audit has each task once.
func TestSeededWork(t *testing.T) {
	if *shiftFlag != 0 {
		s, err := newWorld(t, false).shift(t.Context(), t, *shiftFlag)
		t.Log("\n" + strings.Join(s.trace, "\n"))
		require.NoError(t, err)
		return
	}
	if testing.Short() {
		*shiftsFlag = min(*shiftsFlag, 10)
	}
	started, hits := time.Now(), newHits()
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		w := newWorld(t, false)
		workers.Go(func() {
			for seed := range seeds {
				s, err := w.shift(t.Context(), t, seed)
				if err != nil {
					t.Errorf("seed %d: %v\n%s\nreplay: go test ./test/faults -run TestSeededWork -v -args -shift %d",
						seed, err, strings.Join(s.trace, "\n"), seed)
				}
				hits.add(s)
			}
		})
	}
	for seed := uint64(1); seed <= uint64(*shiftsFlag) && !t.Failed(); seed++ {
		seeds <- seed
	}
	close(seeds)
	workers.Wait()
	for _, k := range deaths {
		require.Positive(t, hits.of[k], "%s never happened", k)
	}
	t.Logf("work under faults\n%s  %-36s %8s\n", hits, "duration", time.Since(started).Round(time.Second))
}

// hits counts over many shifts what happened in them.
type hits struct {
	mu     sync.Mutex
	shifts int
	of     map[death]int
	byHand int
}

func newHits() *hits { return &hits{of: map[death]int{}} }

func (h *hits) add(s *shift) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shifts++
	h.byHand += s.byHand
	for k, n := range s.hits {
		h.of[k] += n
	}
}

func (h *hits) String() string {
	var b strings.Builder
	line := func(name string, n int) { fmt.Fprintf(&b, "  %-36s %8d\n", name, n) }
	line("operations", h.shifts)
	for _, k := range deaths {
		line(string(k), h.of[k])
	}
	line("resumed by hand", h.byHand)
	return b.String()
}
