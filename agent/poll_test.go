package agent

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func when(on *atomic.Bool, err error) error {
	if on.Load() {
		return err
	}
	return nil
}

// TestRemovedNodeStops: a signed removal with the answer of any endpoint ends the agent,
// without an error, so that a supervisor does not start it again. The answer to a result
// or to progress makes the agent poll at once.
func TestRemovedNodeStops(t *testing.T) {
	t.Parallel()
	gone := agenttest.IdentityError(schema.ReasonNodeRemoved)
	for name, set := range map[string]func(*agenttest.API){
		"wait": func(f *agenttest.API) { f.OnWait = func(int) error { return gone } },
		"result": func(f *agenttest.API) {
			var removed atomic.Bool
			f.OnResult = func(int, string, task.Result) error { removed.Store(true); return gone }
			f.OnWait = func(int) error { return when(&removed, gone) }
		},
		"progress": func(f *agenttest.API) {
			var removed atomic.Bool
			f.OnWait = func(int) error { return when(&removed, gone) }
			f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
				removed.Store(true)
				return wire.ProgressResponse{}, gone
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			set(f)
			f.Removal = func() json.RawMessage {
				return f.SignedRemoval(f.Signer, trust.RemovalPayloadType, f.ID, time.Now(), func(*trust.Removal) {})
			}
			x := script{task.FactsCollect: counting(new(atomic.Int32)), task.WorkloadCordon: held(make(chan string, 1), nil)}
			a := start(t, configFor(f), Deps{Executors: x.executors()})
			f.Offers <- f.OfferOf(f.Payload(task.FactsCollect, 1, nil), 1)
			f.Offers <- f.OfferOf(f.Payload(task.WorkloadCordon, 2, nil), 1)
			a.ends(t)
			require.NoError(t, a.err)
			require.Contains(t, a.log.String(), "node removed")
		})
	}
}

func TestBackOffAfterRejectedIdentity(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	reasons := []string{schema.ReasonUnknownIssuer, schema.ReasonIssuerRetired, schema.ReasonExpired,
		schema.ReasonSerialSuperseded, schema.ReasonNodeLocked, schema.ReasonIdentityMismatch}
	f.OnWait = func(n int) error {
		if n > 1 && n <= len(reasons)+1 { // the first use is accepted
			return agenttest.IdentityError(reasons[n-2])
		}
		return nil
	}
	a := start(t, configFor(f), Deps{})
	f.Until("a poll after the refusals", func() bool { return f.Counts["wait"] > len(reasons)+1 })
	for _, r := range reasons {
		require.Contains(t, a.log.String(), `"reason":"`+r+`"`)
	}
	require.Equal(t, len(reasons), strings.Count(a.log.String(), "does not accept this identity"))
	require.Contains(t, a.log.String(), `"serial"`)
	require.Equal(t, 1, f.Count("enroll"), "a refused identity must not lead to a new enrollment here")
}

func TestReconnectAfterOutage(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.Lose = func(what string, n int) bool { return what == "wait" && n <= 5 }
	f.OnEarly = func() bool { return f.Count("wait") <= 5 }
	a := start(t, configFor(f), Deps{})
	p := f.Payload(task.WorkloadCordon, 1, nil)
	f.Until("five lost polls", func() bool { return len(f.Numbers) > 5 })
	f.Note(func() { // one that is sent twice, as Go's client may, keeps its number
		require.Equal(t, []int64{1, 2, 3, 4}, slices.Compact(slices.Clone(f.Numbers))[:4])
	})
	f.Offers <- f.OfferOf(p, 1)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.Contains(t, a.log.String(), "poll failed")
}

// TestPauseAfterEarlyAnswers: a server that shuts down answers every poll at
// once; polling without a pause would be a busy loop.
func TestPauseAfterEarlyAnswers(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	var early atomic.Int32
	f.OnEarly = func() bool { return early.Add(1) <= 5 }
	a := start(t, configFor(f), Deps{})
	f.Until("polls after the early ones", func() bool { return f.Counts["wait"] > 5 })
	require.Equal(t, 5, strings.Count(a.log.String(), "repeated after a pause"))
}

func TestHeartbeatAfterCordon(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	a := start(t, configFor(f), Deps{})
	f.Until("the first heartbeat", func() bool { return len(f.Heartbeats) > 0 })
	require.NotEmpty(t, f.Heartbeats[0].BootID)
	require.Positive(t, f.Heartbeats[0].UptimeSeconds)
	require.Equal(t, version.Version(), f.Heartbeats[0].AgentVersion)
	require.NoError(t, a.cordon.Set(true))
	f.Until("a heartbeat with the cordon", func() bool { return f.Heartbeats[len(f.Heartbeats)-1].Cordoned })
}
