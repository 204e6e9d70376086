package agent

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

func identityError(reason string) error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "not this one").WithReason(reason)
}

// TestRemovedNodeStops: the answer of any endpoint ends the agent, without an
// error, so that a supervisor does not start it again.
func TestRemovedNodeStops(t *testing.T) {
	t.Parallel()
	gone := identityError(schema.ReasonNodeRemoved)
	for name, set := range map[string]func(*fakeAPI){
		"wait":      func(f *fakeAPI) { f.onWait = func(int) error { return gone } },
		"heartbeat": func(f *fakeAPI) { f.onBeat = func() error { return gone } },
		"result":    func(f *fakeAPI) { f.onResult = func(int, string, task.Result) error { return gone } },
		"progress": func(f *fakeAPI) {
			f.progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				return wire.ProgressResponse{}, gone
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			set(f)
			x := script{task.FactsCollect: counting(new(atomic.Int32)), task.WorkloadCordon: held(make(chan string, 1), nil)}
			a := start(t, f.config(), Deps{Executors: x.executors()})
			f.offers <- f.offerOf(f.payload(task.FactsCollect, 1, nil), 1)
			f.offers <- f.offerOf(f.payload(task.WorkloadCordon, 2, nil), 1)
			a.ends(t)
			require.NoError(t, a.err)
			require.Contains(t, a.log.String(), "node removed")
		})
	}
}

func TestRefusedIdentityBacksOffAndSaysWhy(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	reasons := []string{schema.ReasonUnknownIssuer, schema.ReasonIssuerRetired, schema.ReasonExpired,
		schema.ReasonSerialSuperseded, schema.ReasonNodeLocked, schema.ReasonIdentityMismatch}
	f.onWait = func(n int) error {
		if n > 1 && n <= len(reasons)+1 { // the first use is accepted
			return identityError(reasons[n-2])
		}
		return nil
	}
	a := start(t, f.config(), Deps{})
	f.until("a poll after the refusals", func() bool { return f.counts["wait"] > len(reasons)+1 })
	for _, r := range reasons {
		require.Contains(t, a.log.String(), `"reason":"`+r+`"`)
	}
	require.Equal(t, len(reasons), strings.Count(a.log.String(), "does not accept this identity"))
	require.Contains(t, a.log.String(), `"serial"`)
	require.Equal(t, 1, f.count("enroll"), "a refused identity must not lead to a new enrolment here")
}

func TestServerAwayAndBack(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.lose = func(what string, n int) bool { return what == "wait" && n <= 5 }
	f.onEarly = func() bool { return f.count("wait") <= 5 }
	a := start(t, f.config(), Deps{})
	p := f.payload(task.WorkloadCordon, 1, nil)
	f.until("five lost polls", func() bool { return len(f.numbers) > 5 })
	f.note(func() { // one that is sent twice, as Go's client may, keeps its number
		require.Equal(t, []int64{1, 2, 3, 4}, slices.Compact(slices.Clone(f.numbers))[:4])
	})
	f.offers <- f.offerOf(p, 1)
	require.Equal(t, task.Succeeded, f.result(p.TaskID).Status)
	require.Contains(t, a.log.String(), "task wait failed")
}

// TestEarlyAnswersArePaused: a server that shuts down answers every poll at
// once; asking again without a pause would be a loop.
func TestEarlyAnswersArePaused(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	var early atomic.Int32
	f.onEarly = func() bool { return early.Add(1) <= 5 }
	a := start(t, f.config(), Deps{})
	f.until("polls after the early ones", func() bool { return f.counts["wait"] > 5 })
	require.Equal(t, 5, strings.Count(a.log.String(), "repeated after a pause"))
}

func TestHeartbeatFollowsTheCordonAtOnce(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	a, log := newAgent(t, f.config(), Deps{})
	a.timing.heartbeat = 1 << 40 // only changes
	launch(t, a, log)
	f.until("the first heartbeat", func() bool { return len(f.heartbeats) > 0 })
	require.NotEmpty(t, f.heartbeats[0].BootID)
	require.Positive(t, f.heartbeats[0].UptimeSeconds)
	require.Equal(t, Version(), f.heartbeats[0].AgentVersion)
	require.NoError(t, a.flags.setCordoned(true))
	f.until("a heartbeat with the cordon", func() bool { return f.heartbeats[len(f.heartbeats)-1].Cordoned })
}
