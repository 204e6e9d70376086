package fleet

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tally counts the requests and responses of the fleet's agents.
type tally struct {
	enrolled, running, polling, removed atomic.Int64
	offers, done, failed, late          atomic.Int64
	// works counts the starts of tasks: more than there are tasks means that one ran
	// twice.
	works atomic.Int64
	// repeated counts the destructive executions after the first one of an operation.
	repeated atomic.Int64
	// twice counts the results that were posted twice, split those whose two
	// responses differed.
	twice, split atomic.Int64
	results      latencies
	// base is the memory of the process before the first agent, bytes.
	base int64
}

// latencies are the durations of the newest requests of a kind.
type latencies struct {
	mu   sync.Mutex
	ring [4096]time.Duration
	seen int
}

func (w *latencies) add(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ring[w.seen%len(w.ring)] = d
	w.seen++
}

// quantiles returns the p50 and p99; ok is false before the first request.
func (w *latencies) quantiles() (p50, p99 time.Duration, ok bool) {
	w.mu.Lock()
	all := slices.Clone(w.ring[:min(w.seen, len(w.ring))])
	w.mu.Unlock()
	if len(all) == 0 {
		return 0, 0, false
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100], true
}

// line returns one line of the report: name=value, in a fixed order.
func (t *tally) line(size int) string {
	p50, p99 := "-", "-"
	if a, b, ok := t.results.quantiles(); ok {
		p50, p99 = a.Round(time.Millisecond/10).String(), b.Round(time.Millisecond/10).String()
	}
	rss := resident()
	return fmt.Sprintf("size=%d enrolled=%d running=%d polling=%d removed=%d offers=%d works=%d repeated=%d done=%d failed=%d late=%d "+
		"twice=%d split=%d result_p50=%s result_p99=%s rss_mib=%d kib_per_agent=%d",
		size, t.enrolled.Load(), t.running.Load(), t.polling.Load(), t.removed.Load(), t.offers.Load(), t.works.Load(), t.repeated.Load(), t.done.Load(),
		t.failed.Load(), t.late.Load(), t.twice.Load(), t.split.Load(), p50, p99, rss>>20, (rss-t.base)>>10/int64(size))
}
