package nodeapi_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
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
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// queries counts the store calls of polls.
type queries struct{ identity, task atomic.Int64 }

// quiet is a store that counts its calls and has no tasks; with idle it reports
// Caller.Idle.
func (q *queries) quiet(idle bool) *fakeStore {
	return &fakeStore{
		authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
			q.identity.Add(1)
			return nodeapi.Caller{NodeID: id.NodeID, Idle: idle}, nil
		},
		next: func([]string) (*nodeapi.Dispatch, error) {
			q.task.Add(1)
			return nil, nil
		},
	}
}

// bubble is a site without a network for the fake time of synctest.
type bubble struct {
	*site
	handler http.Handler
	leaf    *x509.Certificate
}

// another is the same site with another node.
func (b *bubble) another() *bubble {
	s := *b.site
	s.node.NodeID = schema.NewID()
	return &bubble{&s, b.handler, s.cert().Leaf}
}

func newBubble(t *testing.T, store *fakeStore) *bubble {
	t.Helper()
	s, api := newAPI(t, store, func(*nodeapi.Config) {})
	return &bubble{site: s, handler: api.Handler(), leaf: s.cert().Leaf}
}

// poll makes one poll and returns its status and duration.
func (b *bubble) poll(ctx context.Context, wait time.Duration) (status int, took time.Duration) {
	body, err := json.Marshal(pollRequest(waitFor(wait)))
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/internal/v1/nodes/"+b.node.NodeID+"/tasks/wait", bytes.NewReader(body))
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{b.leaf}}
	w, start := httptest.NewRecorder(), time.Now()
	b.handler.ServeHTTP(w, r)
	return w.Code, time.Since(start)
}

// Polls that start together, as after a restart of the API, end spread over a
// twentieth of their wait, in a few bursts a second, and none ends late.
func TestPollEndsAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const polls = 200
		b := newBubble(t, new(queries).quiet(true))
		var mu sync.Mutex
		ends := map[time.Duration]int{} // by the time
		var group sync.WaitGroup
		for range polls {
			b := b.another()
			group.Go(func() {
				status, took := b.poll(t.Context(), 50*time.Second)
				assert.Equal(t, http.StatusNoContent, status)
				assert.GreaterOrEqual(t, took, 47250*time.Millisecond)
				assert.LessOrEqual(t, took, 50*time.Second)
				mu.Lock()
				defer mu.Unlock()
				ends[time.Duration(time.Now().UnixNano())]++
			})
		}
		group.Wait()
		assert.GreaterOrEqual(t, len(ends), 8, "%v", ends)
		for at, n := range ends {
			assert.Zero(t, at%(250*time.Millisecond))
			assert.Less(t, n, polls/3)
		}
	})
}

// A poll queries the store when it starts and when it is woken, and skips the task
// query for an idle node. It makes no query while it waits or at its end.
func TestPollQueriesOnlyOnStartAndWake(t *testing.T) {
	t.Parallel()
	for _, idle := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var q queries
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
				status, _ := b.poll(t.Context(), 55*time.Second)
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

// A task that is enqueued after the node was read as idle is dispatched by the
// wake.
func TestWakeDispatchesToIdleNode(t *testing.T) {
	var reads atomic.Int64
	var s *site
	s = newSite(t, &fakeStore{
		authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
			if reads.Add(1) == 1 {
				s.wakes.wake(s.node.NodeID) // enqueued right after the row was read
				return nodeapi.Caller{NodeID: id.NodeID, Idle: true}, nil
			}
			return nodeapi.Caller{NodeID: id.NodeID}, nil
		},
		next: func([]string) (*nodeapi.Dispatch, error) { return offer(), nil },
	})
	require.Equal(t, http.StatusOK, receive(t, s.poll(t.Context())).status)
	require.Equal(t, int64(2), reads.Load())
}
