package server

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A replica whose clock differs from the database's leases no task, and dispatches it once the
// clocks agree. The node stays connected.
func TestNoDispatchWithAWrongClock(t *testing.T) {
	c := newCluster(t)
	var ahead atomic.Int64
	clocks := daemon.NewClocks(prometheus.NewRegistry())
	clocks.Compare(daemon.ClockOfPostgres, "this replica dispatches no task", func(context.Context) (time.Time, error) {
		return time.Now().Add(time.Duration(ahead.Load())), nil
	})
	c.grants = timelyGrants{delegate{c.ca}, clocks}
	c.follow = func(context.Context, trust.StoredSet) error { return nil }
	r := c.replica()
	m := r.enrolled()
	taskID, attach := r.task(m)
	attach()

	ahead.Store(int64(time.Minute))
	require.Error(t, clocks.Check(t.Context()))
	require.Equal(t, http.StatusNoContent, r.wait(m, time.Millisecond).status)
	require.Positive(t, r.metric("gpuaas_tasks_withheld_total"))

	ahead.Store(0)
	require.NoError(t, clocks.Check(t.Context()))
	a := r.wait(m, time.Millisecond)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	require.Contains(t, string(a.body), taskID)
	require.Contains(t, string(a.body), `"epoch":1`, "the task was not leased before")
}

// A process whose clock differs from the database's starts, serves, and says why it dispatches
// nothing. It is whole again when the clocks agree.
func TestClockSkewIsReported(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	pgtest.ShiftClock(t, databaseURL, 45*time.Second)
	p := newProcess(t, databaseURL)
	publish(t, databaseURL, p.vault)
	stop := p.start()
	p.becomes(http.StatusOK, `"clock"]`)
	const says = "the clock of postgres is 45s ahead of this machine's, more than the limit of 30s; this replica dispatches no task"
	assert.Contains(t, p.log.String(), `"msg":"clocks differ"`)
	assert.Contains(t, p.log.String(), says)
	stuck := string(p.ask(http.MethodGet, "/stuck", nil).body)
	assert.Contains(t, stuck, `"component":"clock","reason":"clock_skew"`)
	assert.Contains(t, stuck, says)
	assert.Contains(t, stuck, "timedatectl")
	harness.Eventually(t, "the difference as a metric", func() bool { return strings.Contains(p.scrape(), `gpuaas_clock_skew_seconds{peer="postgres"} 4`) })
	assert.Contains(t, p.scrape(), `gpuaas_clock_skew_seconds{peer="vault"}`)
	assert.Contains(t, p.scrape(), `gpuaas_dependency_up{name="clock"} 0`)

	pgtest.ShiftClock(t, databaseURL, 0)
	p.answers(p.admin+"/readyz", http.StatusOK, `{"status":"ok","degraded":["temporal"]}`)
	assert.NotContains(t, string(p.ask(http.MethodGet, "/stuck", nil).body), `"component":"clock"`)
	assert.Equal(t, 0, stop())
}
