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
	roundsFlag = flag.Int("rounds", 150, "number of simulated operations with lost calls and crashes between commits")
	afterFlag  = flag.Uint64("after-round", 0, "number of seeds that an earlier run covered")
	roundFlag  = flag.Uint64("round", 0, "run only this seed and print its trace")
)

// starved is a seed whose faults leave all three steps to the end. A random choice of
// the actions without faults did not complete it in 400 actions.
const starved = 577

// TestSeededDispatch runs operations with tasks for a node while worker, API, relay and
// Temporal crash between the steps of a dispatch and of a result, and leases expire.
// Destructive tasks start at most once, no result is lost, and the audit contains each
// task once.
func TestSeededDispatch(t *testing.T) {
	if *roundFlag != 0 {
		s, err := newWorld(t, false).simulateRound(t.Context(), t, *roundFlag)
		t.Log("\n" + strings.Join(s.trace, "\n"))
		require.NoError(t, err)
		return
	}
	if testing.Short() {
		*roundsFlag = min(*roundsFlag, 10)
	}
	started, hits := time.Now(), newHits()
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		w := newWorld(t, false)
		workers.Go(func() {
			for seed := range seeds {
				s, err := w.simulateRound(t.Context(), t, seed)
				if err != nil {
					t.Errorf("seed %d: %v\n%s\nreplay: go test ./test/faults -run TestSeededDispatch -v -args -round %d",
						seed, err, strings.Join(s.trace, "\n"), seed)
				}
				hits.add(s)
			}
		})
	}
	seeds <- starved
	for i := uint64(1); i <= uint64(*roundsFlag) && !t.Failed(); i++ {
		seeds <- *afterFlag + i
	}
	close(seeds)
	workers.Wait()
	for _, k := range incidents {
		require.Positive(t, hits.of[k], "%s never happened", k)
	}
	t.Logf("tasks under faults\n%s  %-36s %8s\n", hits, "duration", time.Since(started).Round(time.Second))
}

// hits counts incidents over many rounds.
type hits struct {
	mu     sync.Mutex
	rounds int
	of     map[incident]int
	byHand int
}

func newHits() *hits { return &hits{of: map[incident]int{}} }

func (h *hits) add(s *round) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds++
	h.byHand += s.byHand
	for k, n := range s.hits {
		h.of[k] += n
	}
}

func (h *hits) String() string {
	var b strings.Builder
	line := func(name string, n int) { fmt.Fprintf(&b, "  %-36s %8d\n", name, n) }
	line("operations", h.rounds)
	for _, k := range incidents {
		line(string(k), h.of[k])
	}
	line("resumed by an operator", h.byHand)
	return b.String()
}
