package server

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/test/harness"
)

// The limits are those of docs/architecture.md, 5 s and 10 s, and 20 s for a busy machine. They are
// shorter than a poll.
const (
	revokedWithin = 25 * time.Second // from a revocation to the last accepted request
	cutOffWithin  = 30 * time.Second // from the loss of the database to the last accepted request
)

// within returns what the channel receives, and fails the test if that takes longer.
func within[T any](tb testing.TB, limit time.Duration, ch <-chan T, what string) (got T) {
	tb.Helper()
	select {
	case got = <-ch:
	case <-time.After(limit):
		require.FailNow(tb, what, "not within %s", limit)
	}
	return got
}

// A removal ends the open polls of two replicas, one of which receives no notification,
// and both refuse the next request.
func TestRemovalReachesEveryReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, deaf := c.replica(), c.replica()
	m := a.enrolled()
	a.operate(m.id, lifecycle.ActionRetire, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRetired})
	polls := []<-chan reply{a.poll(m), deaf.poll(m)}
	a.parked(1)
	deaf.parked(1)
	deaf.deafen()
	a.operate(m.id, lifecycle.ActionRemove, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeRemoved, DenyIdentity: true})
	limit := time.Now().Add(revokedWithin)
	for _, poll := range polls {
		got := within(t, time.Until(limit), poll, "the removal ends an open poll")
		a.refusal(got, schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	}
	for _, r := range []*replica{a, deaf} {
		r.refusal(r.wait(m, 0), schema.KindInvalidNodeIdentity, schema.ReasonNodeRemoved)
	}
}

// A replica that loses Postgres ends its open polls and refuses every request: whether its
// connections break, or hang without an error.
func TestReplicaWithoutDatabaseRefuses(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*proxy){"connections break": (*proxy).close, "connections hang": (*proxy).hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			at, err := url.Parse(c.url)
			require.NoError(t, err)
			line := newProxy(t, harness.FreeAddress(t), at.Host)
			line.open()
			at.Host = line.address
			healthy, cut := c.replica(), c.replicaOn(at.String())
			m := healthy.enrolled()
			poll := cut.poll(m)
			cut.parked(1)
			lose(line)
			limit := time.Now().Add(cutOffWithin)
			asked := cut.poll(m)
			for what, answer := range map[string]<-chan reply{"the open poll ends": poll, "a request is refused": asked} {
				a := within(t, time.Until(limit), answer, what)
				cut.refusal(a, schema.KindServiceUnavailable, "")
			}
			require.Equal(t, http.StatusNoContent, healthy.wait(m, 0).status, "the other replica serves")
		})
	}
}
