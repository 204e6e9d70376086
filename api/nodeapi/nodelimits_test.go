package nodeapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// A node has two open polls at most: the third ends the oldest with 204, and only that one.
// Other nodes' polls are not affected.
func TestNewestPollEndsTheOldest(t *testing.T) {
	var offering atomic.Bool
	s := newSite(t, &fakeStore{next: func([]string) (*nodeapi.Dispatch, error) {
		if offering.Load() {
			return offer(), nil
		}
		return nil, nil
	}})
	other := *s
	other.node.NodeID = schema.NewID()
	bystander := other.poll(t.Context())
	open := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return s.wakes.waiting(s.node.NodeID) == n }, harness.Timeout, time.Millisecond)
	}
	// served ends the polls with a task. A poll that another one ended has 204.
	served := func(polls ...<-chan answer) {
		t.Helper()
		offering.Store(true)
		s.wakes.wake(s.node.NodeID)
		s.wakes.wake(other.node.NodeID)
		for _, poll := range polls {
			assert.Equal(t, http.StatusOK, receive(t, poll).status)
		}
		offering.Store(false)
		open(0)
	}
	first := s.poll(t.Context())
	open(1)
	second := s.poll(t.Context())
	open(2)
	third := s.poll(t.Context())
	assert.Equal(t, http.StatusNoContent, receive(t, first).status)
	open(2)
	served(second, third, bystander)

	oldest := s.poll(t.Context())
	open(1)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := s.poll(ctx)
	open(2)
	cancel() // frees its place: the next poll ends no other one
	receive(t, canceled)
	open(1)
	next := s.poll(t.Context())
	open(2)
	served(oldest, next)
}

// A certificate of an earlier incarnation is valid until it expires. Its requests neither
// use up the limits of the reissued node nor end its polls.
func TestFormerIncarnationTakesNothing(t *testing.T) {
	var offering atomic.Bool
	now, release := time.Now(), make(chan struct{})
	s := newSiteWith(t, &fakeStore{
		authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
			if id.Incarnation == 1 {
				<-release
				return nodeapi.Caller{}, schema.NewError(schema.KindInvalidNodeIdentity, "another incarnation").WithReason(schema.ReasonIdentityMismatch)
			}
			return nodeapi.Caller{NodeID: id.NodeID, Incarnation: id.Incarnation}, nil
		},
		next: func([]string) (*nodeapi.Dispatch, error) {
			if offering.Load() {
				return offer(), nil
			}
			return nil, nil
		}}, func(c *nodeapi.Config) { c.Now = func() time.Time { return now } }) // nothing refills
	thief := *s
	s.node.Incarnation = 2
	polled := s.poll(t.Context())
	s.parked(1)
	c, former := s.client(s.cert()), thief.client(thief.cert())
	large := `{"status":"` + strings.Repeat("x", 1<<19) + `"}`
	result := func(c *http.Client) schema.ErrorDetail {
		return call(t, c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/result"), large).refusal(t)
	}
	var polls []<-chan answer
	for range 3 { // two of them begin
		polls = append(polls, thief.poll(t.Context()))
	}
	require.Eventually(t, func() bool { return s.wakes.waiting(s.node.NodeID) == 3 }, harness.Timeout, time.Millisecond)
	close(release)
	for _, poll := range polls {
		require.Equal(t, schema.ReasonIdentityMismatch, receive(t, poll).refusal(t).Reason)
	}
	for reason := ""; reason != "over_node_bytes"; reason = result(former).Reason {
		require.Contains(t, []string{"", schema.ReasonIdentityMismatch}, reason)
	}
	for reason := ""; reason != "over_node_requests"; reason = call(t, former, http.MethodGet, s.path("/tasks/wait"), nil).refusal(t).Reason {
		require.Contains(t, []string{"", schema.ReasonIdentityMismatch}, reason)
	}

	assert.Equal(t, http.StatusNoContent, call(t, c, http.MethodGet, s.path("/tasks/wait"), nil).status)
	assert.Equal(t, "bad_status", result(c).Reason)
	offering.Store(true)
	s.wakes.wake(s.node.NodeID)
	assert.Equal(t, http.StatusOK, receive(t, polled).status)
}

// A poll whose body is sent slowly is no open poll yet, and has ten seconds. Of a node's
// polls, two bodies are read at once, and the others wait for them.
func TestSlowBodiesOfPolls(t *testing.T) {
	t.Parallel()
	s := newSite(t, &fakeStore{})
	roots := x509.NewCertPool()
	roots.AddCert(s.serverCA.cert)
	const polls = 60
	refused := make(chan string, polls)
	cert := s.cert()
	for range polls {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.base, "https://"), &tls.Config{RootCAs: roots, ServerName: "localhost", Certificates: []tls.Certificate{*cert}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{", strings.TrimPrefix(s.path("/tasks/wait"), s.base))
		require.NoError(t, err)
		go func() {
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return
			}
			defer func() { _ = res.Body.Close() }()
			var b schema.ErrorBody
			_ = json.NewDecoder(res.Body).Decode(&b)
			refused <- b.Error.Reason
		}()
	}
	reasons := map[string]int{}
	for range polls {
		reasons[harness.Receive(t, "a rejection", refused)]++
		require.Zero(t, s.wakes.waiting(s.node.NodeID), "subscriptions of polls without a body")
	}
	assert.Equal(t, map[string]int{"over_node_in_flight": polls - 2, "body_unreadable": 2}, reasons)
	s.poll(t.Context())
	s.parked(1)
}

// A node whose requests come faster than its rate, or with more bytes, is rejected with
// rate_limited before the store is read. Another node is not.
func TestNodeRequestRate(t *testing.T) {
	now := time.Now()
	var reads atomic.Int64
	s := newSiteWith(t, &fakeStore{authenticate: func(id trust.Identity, _ trust.CertFacts) (nodeapi.Caller, error) {
		reads.Add(1)
		return nodeapi.Caller{NodeID: id.NodeID, Incarnation: 1}, nil
	}}, func(c *nodeapi.Config) { c.Now = func() time.Time { return now } }) // nothing refills
	c := s.client(s.cert())
	probe := func(c *http.Client, s *site) answer { return call(t, c, http.MethodGet, s.path("/tasks/wait"), nil) }
	served := 0
	a := probe(c, s)
	for ; a.status == http.StatusNoContent && served < 1000; served++ {
		a = probe(c, s)
	}
	assert.Equal(t, 200, served)
	assert.Equal(t, http.StatusTooManyRequests, a.status)
	assert.Equal(t, "over_node_requests", a.refusal(t).Reason)
	assert.NotEmpty(t, a.header.Get("Retry-After"))
	assert.Equal(t, int64(200), reads.Load())
	assert.InDelta(t, 1, s.metric("gpuaas_node_api_limited_total", "node_requests"), 0)

	other := *s
	other.node.NodeID = schema.NewID()
	c = other.client(other.cert())
	require.Equal(t, http.StatusNoContent, probe(c, &other).status)
	large := `{"status":"` + strings.Repeat("x", 1<<19) + `"}`
	statuses := map[string]int{}
	for range 80 {
		statuses[call(t, c, http.MethodPost, other.path("/tasks/"+schema.NewID()+"/result"), large).refusal(t).Reason]++
	}
	assert.Equal(t, map[string]int{"bad_status": 63, "over_node_bytes": 17}, statuses, "32 MiB")
}

// Of a node's polls, two at once use the database before they wait. The others wait for them.
func TestPollsThatBegin(t *testing.T) {
	var running, most, served atomic.Int64
	release := make(chan struct{})
	s := newSite(t, &fakeStore{heartbeat: func(nodeapi.Caller, wire.Heartbeat) error {
		n := running.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		<-release
		running.Add(-1)
		return nil
	}})
	var polls []<-chan answer
	for range 12 {
		polls = append(polls, s.poll(t.Context(), waitFor(0), func(r *wire.PollRequest) { r.Heartbeat = &wire.Heartbeat{Phase: wire.PhaseReady} }))
	}
	require.Eventually(t, func() bool { return running.Load() == 2 }, harness.Timeout, time.Millisecond)
	close(release)
	for _, poll := range polls {
		if a := receive(t, poll); assert.Equal(t, http.StatusNoContent, a.status, string(a.body)) {
			served.Add(1)
		}
	}
	assert.Equal(t, int64(12), served.Load())
	assert.LessOrEqual(t, most.Load(), int64(2))
}

// Of a node's requests, four are in progress at once. The others wait for them.
func TestNodeRequestsInFlight(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	s := newSite(t, &fakeStore{progressed: func(task.Progress) (nodeapi.ProgressResult, error) {
		n := running.Add(1)
		for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
		}
		<-release
		running.Add(-1)
		return nodeapi.ProgressResult{}, nil
	}})
	c := s.client(s.cert())
	var group sync.WaitGroup
	var served atomic.Int64
	for range 12 {
		group.Go(func() {
			a, err := try(t.Context(), c, http.MethodPost, s.path("/tasks/"+schema.NewID()+"/progress"), task.Progress{LeaseEpoch: 1})
			if assert.NoError(t, err) && assert.Equal(t, http.StatusOK, a.status, string(a.body)) {
				served.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return running.Load() == 4 }, harness.Timeout, time.Millisecond)
	close(release)
	group.Wait()
	assert.Equal(t, int64(12), served.Load())
	assert.Equal(t, int64(4), most.Load())
}
