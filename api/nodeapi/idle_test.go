package nodeapi_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// questions counts what polls ask the store.
type questions struct{ identity, task atomic.Int64 }

// quiet is a store that counts questions and has no work; idle says so with the
// identity.
func (q *questions) quiet(idle bool) *fakeStore {
	return &fakeStore{
		authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
			q.identity.Add(1)
			return nodeapi.Caller{NodeID: id.NodeID, Idle: idle}, nil
		},
		next: func([]string) (*wire.TaskOffer, error) {
			q.task.Add(1)
			return nil, nil
		},
	}
}

// bubble is a site without a network, for a bubble's time.
type bubble struct {
	*site
	handler http.Handler
	leaf    *x509.Certificate
}

func newBubble(t *testing.T, store *fakeStore) *bubble {
	t.Helper()
	s, api := newAPI(t, store, func(*nodeapi.Config) {})
	return &bubble{site: s, handler: api.Handler(), leaf: s.cert().Leaf}
}

// poll makes one poll and returns its status and how long it took.
func (b *bubble) poll(ctx context.Context, more string) (status int, took time.Duration) {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/internal/v1/nodes/"+b.node.NodeID+"/tasks/wait?"+asker()+more, nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{b.leaf}}
	w, start := httptest.NewRecorder(), time.Now()
	b.handler.ServeHTTP(w, r)
	return w.Code, time.Since(start)
}

// Polls that begin all at once, as after a restart of the API, end spread over a
// fifth of their time, and none later than asked.
func TestPollsEndSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const polls = 200
		b := newBubble(t, new(questions).quiet(true))
		var mu sync.Mutex
		ends := map[time.Duration]int{} // by the second
		var group sync.WaitGroup
		for range polls {
			group.Go(func() {
				status, took := b.poll(t.Context(), "&timeout=50s")
				assert.Equal(t, http.StatusNoContent, status)
				assert.GreaterOrEqual(t, took, 40*time.Second)
				assert.LessOrEqual(t, took, 50*time.Second)
				mu.Lock()
				defer mu.Unlock()
				ends[took.Truncate(time.Second)]++
			})
		}
		group.Wait()
		assert.GreaterOrEqual(t, len(ends), 10, "some in each second: %v", ends)
		for second, n := range ends {
			assert.Less(t, n, polls/4, "%s: %v", second, ends)
		}
	})
}

// A poll asks when it begins and when it is woken: once where the node is idle,
// and about a task only where there is one. It asks nothing while it waits and
// nothing at its end.
func TestAnOpenPollAsksWhenItBeginsAndWhenItIsWoken(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var q questions
			b := newBubble(t, q.quiet(idle))
			asked := func(times int64) {
				t.Helper()
				tasks := times
				if idle {
					tasks = 0
				}
				require.Equal(t, times, q.identity.Load())
				require.Equal(t, tasks, q.task.Load())
			}
			var group sync.WaitGroup
			group.Go(func() {
				status, _ := b.poll(t.Context(), "&timeout=55s")
				assert.Equal(t, http.StatusNoContent, status)
			})
			synctest.Wait()
			asked(1)
			<-time.After(40 * time.Second)
			synctest.Wait()
			asked(1)
			b.wakes.wake(b.node.NodeID)
			synctest.Wait()
			asked(2)
			group.Wait()
			asked(2)
		})
	}
}

// What an idle node's poll did not ask for comes with the wake.
func TestWorkThatComesToAnIdleNode(t *testing.T) {
	var reads atomic.Int64
	var s *site
	s = newSite(t, &fakeStore{
		authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
			if reads.Add(1) == 1 {
				s.wakes.wake(s.node.NodeID) // attached right after the row was read
				return nodeapi.Caller{NodeID: id.NodeID, Idle: true}, nil
			}
			return nodeapi.Caller{NodeID: id.NodeID}, nil
		},
		next: func([]string) (*wire.TaskOffer, error) { return offer(), nil },
	})
	require.Equal(t, http.StatusOK, receive(t, s.poll(t.Context(), "")).status)
	require.Equal(t, int64(2), reads.Load())
}
