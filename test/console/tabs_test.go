package console

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// manyTabs is the number of open pages, half of them of the overview and half of an operation.
const manyTabs = 100

// maxGrowth bounds how much memory the API needs for many pages, in bytes.
const maxGrowth = 256 << 20

// tabs are open pages, each with a stream, that are read again at each notice as the script does.
type tabs struct {
	client
	cancel context.CancelFunc
	open   sync.WaitGroup

	mu sync.Mutex
	// until reports whether a content is that after a change, and seen has when each page showed it.
	until func(content string) bool
	seen  map[int]time.Time
	reads int
	errs  []error
}

// openTabs opens n pages and waits until each has a stream.
func openTabs(t *testing.T, n int, nodeID, operationID string) *tabs {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &tabs{client: login(t), cancel: cancel, seen: map[int]time.Time{}}
	t.Cleanup(s.close)
	var connected sync.WaitGroup
	for i := range n {
		view, path := "all", "/"
		if i%2 == 1 {
			view, path = nodeID, "/operations/"+operationID
		}
		connected.Add(1)
		s.open.Go(func() {
			opened := sync.OnceFunc(connected.Done)
			defer opened()
			err := s.follow(ctx, view, s.revision(ctx, path), opened, func() { s.refresh(ctx, i, path) })
			s.fail(ctx, err)
		})
	}
	connected.Wait()
	return s
}

// revision is that of the page now.
func (s *tabs) revision(ctx context.Context, path string) string {
	_, body, err := s.get(ctx, path)
	s.fail(ctx, err)
	if m := regexp.MustCompile(`data-rev="([^"]+)"`).FindStringSubmatch(body); m != nil {
		return m[1]
	}
	return "" // the stream begins with a notice
}

func (s *tabs) refresh(ctx context.Context, i int, path string) {
	status, body, err := s.get(ctx, path, "Gpuaas-Region", "1")
	if err == nil && status != http.StatusOK {
		err = statusError(status)
	}
	s.fail(ctx, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.until != nil && s.seen[i].IsZero() && s.until(body) {
		s.seen[i] = time.Now()
	}
}

func (s *tabs) fail(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// reaches makes a change, waits until each of n pages shows it, and returns how long that took for each,
// the fastest first.
func (s *tabs) reaches(t *testing.T, n int, change func(), until func(content string) bool) (took []time.Duration) {
	t.Helper()
	s.mu.Lock()
	s.until = until
	s.mu.Unlock()
	change()
	began := time.Now()
	harness.Poll(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.seen) == n
	}, conditionTimeout, conditionEvery, "the change reaches each page")
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.errs)
	for _, at := range s.seen {
		took = append(took, max(at.Sub(began), 0))
	}
	slices.Sort(took)
	return took
}

func (s *tabs) close() {
	s.cancel()
	s.open.Wait()
	s.CloseIdleConnections()
}

// canceledStatus is the status of a canceled operation on a page.
const canceledStatus = "</span> " + string(lifecycle.OperationCanceled) + "</span>"

// canceled is the number of canceled operations that the overview counts, -1 on another page.
func canceled(content string) int {
	m := regexp.MustCompile(canceledStatus + ` <strong>(\d+)</strong>`).FindStringSubmatch(content)
	switch {
	case m != nil:
		n, _ := strconv.Atoi(m[1]) // it has digits only
		return n
	case strings.Contains(content, `id="day"`):
		return 0
	}
	return -1
}

// load is what the API and the database have done so far.
type load struct {
	at               time.Time
	cpu, memory      float64
	reads            int
	transactionsDone int64
}

func loadOf(t *testing.T, s *tabs) (l load) {
	t.Helper()
	l.at, l.cpu, l.memory = time.Now(), metric(t, "process_cpu_seconds_total"), metric(t, "process_resident_memory_bytes")
	s.mu.Lock()
	l.reads = s.reads
	s.mu.Unlock()
	harness.Query(t, stack, func(rows pgx.Rows) { require.NoError(t, rows.Scan(&l.transactionsDone)) },
		"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
	return l
}

// change parks and extends the drain of a node with n open pages, then cancels it, and returns the
// transactions of the database a second.
func change(t *testing.T, host string, n int) float64 {
	t.Helper()
	const extensions = 3
	isParked := func() bool { return operation(t, host).Operation.Stuck != nil }
	gpuaas(t, "node", "drain", host, "--deadline", "2s", "--reason", "RMA-4411", "--yes", "--no-wait")
	eventually(t, "the drain is parked", isParked)
	v := operation(t, host)
	open := openTabs(t, n, v.Node.NodeID, v.Operation.OperationID)
	defer open.close()
	before := loadOf(t, open)
	for range extensions {
		gpuaas(t, "op", "extend", host, "--reason", "more time", "--yes")
		eventually(t, "the drain is parked", isParked)
	}
	count := canceled(login(t).page("/"))
	took := open.reaches(t, n, func() { gpuaas(t, "op", "cancel", host, "--reason", "not now", "--yes") }, func(content string) bool {
		return canceled(content) > count || canceled(content) < 0 && strings.Contains(content, canceledStatus)
	})
	after := loadOf(t, open)
	seconds := after.at.Sub(before.at).Seconds()
	rate := float64(after.transactionsDone-before.transactionsDone) / seconds
	t.Logf("%3d pages: the end of an operation reached them in %s (median) and %s (last); in %.0f s read again %d times; the API used %.2f of a processor and %.0f MB; %.0f transactions a second",
		n, round(took[len(took)/2]), round(took[len(took)-1]), seconds, after.reads-before.reads, (after.cpu-before.cpu)/seconds, after.memory/(1<<20), rate)
	ended(t, host, lifecycle.OperationCanceled)
	return rate
}

// TestManyTabs: a change of one operation reaches each of 100 open pages; the queries of the database do
// not grow with the number of pages, and the API's memory is bounded; the API has no goroutine of a
// page that was closed.
func TestManyTabs(t *testing.T) {
	needStack(t)
	seed(t)
	const host = "con-tabs"
	node(t, host)
	busy(t, host)
	goroutinesBefore, memory := goroutines(t), metric(t, "process_resident_memory_bytes")
	few := change(t, host, 2)
	many := change(t, host, manyTabs)
	require.Less(t, many, 2*few+20)
	require.Less(t, metric(t, "process_resident_memory_bytes"), memory+maxGrowth)
	harness.Poll(t, func() bool { return goroutines(t) <= goroutinesBefore+10 }, conditionTimeout, conditionEvery, "the goroutines of the pages end")
}
