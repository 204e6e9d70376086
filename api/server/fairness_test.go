package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The load of TestFairness.
const (
	fairNodes     = 8
	fairPolls     = 25 // of each node, one each fairEvery
	fairEvery     = 250 * time.Millisecond
	floodRequests = 600
	floodEvery    = 10 * time.Millisecond
	floodPolls    = 5000
	floodParallel = 64
)

// latencies makes the polls of all nodes and returns their durations, shortest first.
func (r *replica) latencies(nodes []machine) []time.Duration {
	r.tb.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var group sync.WaitGroup
	for _, m := range nodes {
		c := r.client(m.cert)
		group.Go(func() {
			tick := time.NewTicker(fairEvery)
			defer tick.Stop()
			for range fairPolls {
				<-tick.C
				start := time.Now()
				a, err := send(r.tb.Context(), c, http.MethodPost, r.url(m, "/tasks/wait"), pollRequest(0))
				if assert.NoError(r.tb, err) && assert.Equal(r.tb, http.StatusNoContent, a.status, string(a.body)) {
					mu.Lock()
					took = append(took, time.Since(start))
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	slices.Sort(took)
	return took
}

// flood sends enrollments with unknown tokens, each from another address, until all are
// sent.
func (r *replica) flood(nodeID string) {
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	var group sync.WaitGroup
	csr := newCSR(r.tb, newKey(r.tb), nil)
	for i := range floodRequests {
		<-tick.C
		text, _, _ := trust.NewToken()
		c := r.from(fmt.Sprintf("127.%d.%d.1", 1+i/100, 1+i%100))
		group.Go(func() {
			_, _ = send(r.tb.Context(), c, http.MethodPost, r.node+"/internal/v1/nodes/"+nodeID+"/enroll", wire.EnrollRequest{Token: text, CSR: csr})
			c.CloseIdleConnections()
		})
	}
	group.Wait()
}

// A client without an identity that sends 100 requests a second, each from another address, and a
// node with 5,000 polls, do not disturb the other nodes: all their polls are answered. The
// flood writes a number of rows that does not depend on its requests. The test reports the
// ratio of the slowest polls with and without the load, in which the clients of the load,
// on the same machine, count too.
func TestFairness(t *testing.T) {
	if testing.Short() {
		t.Skip("generates load for several seconds; not under -short")
	}
	r := newCluster(t).replica()
	nodes := make([]machine, fairNodes)
	for i := range nodes {
		nodes[i] = r.enrolled()
		r.wait(nodes[i], 0) // the first poll writes more
	}
	greedy := r.enrolled()
	quiet := r.latencies(nodes)

	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var limited atomic.Int64
	load.Go(func() { r.flood(schema.NewID()) })
	c := r.client(greedy.cert)
	var polls atomic.Int64
	for range floodParallel {
		load.Go(func() {
			for polls.Add(1) <= floodPolls && ctx.Err() == nil {
				a, err := send(ctx, c, http.MethodPost, r.url(greedy, "/tasks/wait"), pollRequest(time.Minute))
				if err == nil && a.status == http.StatusTooManyRequests {
					limited.Add(1)
				}
			}
		})
	}
	loaded := r.latencies(nodes)
	open := r.metric("gpuaas_waiting_agents")
	cancel()
	load.Wait()

	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
	require.Len(t, loaded, fairNodes*fairPolls)
	t.Logf("p99 of polls: %s quiet, %s under load, ratio %.1f; p50 %s and %s; rejected polls %d, open polls %.0f",
		p99(quiet), p99(loaded), float64(p99(loaded))/float64(p99(quiet)), quiet[len(quiet)/2], loaded[len(loaded)/2], limited.Load(), open)
	assert.LessOrEqual(t, open, 2.0, "open polls of the node")
	assert.Positive(t, limited.Load())
	rows, _ := r.refusedRequests()
	assert.LessOrEqual(t, len(rows), 2*21)
}
