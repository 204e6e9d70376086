package faults_test

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	shiftsFlag     = flag.Int("shifts", 60, "number of simulated shifts of work")
	afterShiftFlag = flag.Uint64("after-shift", 0, "number of seeds that an earlier run covered")
	shiftFlag      = flag.Uint64("shift", 0, "run only this seed and print its trace")
)

// foundShifts are seeds that once ended in a failure.
var foundShifts = []uint64{71, 257, 577, 7392, 20024, 31471, 32809, 60415, 705351, 800076}

// TestSeededWork runs shifts of work: the workflows of package workflows, with the real
// activities, run random actions on a node, while the database, Vault, the provider, the
// relay and the node fail, and operators decide, cancel and terminate. Then the faults
// end, and someone follows the recommended options. Every operation must end, and the
// node must be removable (see shift.check).
func TestSeededWork(t *testing.T) {
	if *shiftFlag != 0 {
		s := newShift(*shiftFlag)
		err := s.run()
		t.Log("\n" + strings.Join(s.trace, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if testing.Short() {
		*shiftsFlag = min(*shiftsFlag, 10)
	}
	started, counts := time.Now(), counts{of: map[string]int{}}
	seeds := make(chan uint64)
	var workers sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for seed := range seeds {
				s := newShift(seed)
				if err := s.run(); err != nil {
					t.Errorf("seed %d: %v\nreplay: go test ./test/faults -run TestSeededWork -v -args -shift %d", seed, err, seed)
				}
				counts.add(s.hits)
			}
		})
	}
	for _, seed := range foundShifts {
		seeds <- seed
	}
	for i := range uint64(*shiftsFlag) {
		seeds <- *afterShiftFlag + i + 1
	}
	close(seeds)
	workers.Wait()
	t.Logf("shifts of work\n%s  %-44s %8s\n", &counts, "duration", time.Since(started).Round(time.Second))
}

// counts counts what happened in many shifts.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(hits map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of["shifts"]++
	for k, n := range hits {
		c.of[k] += n
	}
}

func (c *counts) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c.of)) {
		fmt.Fprintf(&b, "  %-44s %8d\n", k, c.of[k])
	}
	return b.String()
}
