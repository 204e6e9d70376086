package agent

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// A result that waited while the certificate was renewed is signed with the key
// of the certificate that it goes with.
func TestSignResultAtPost(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.serial()
	var renewed atomic.Bool
	r.f.OnResult = func(int, string, task.Result) error {
		if renewed.Load() {
			return nil
		}
		return schema.NewError(schema.KindServiceUnavailable, "not now")
	}
	p := r.f.Payload(task.FactsCollect, 1, nil)
	r.f.Offers <- r.f.OfferOf(p, 1)
	for len(r.f.Offers) > 0 { // a poll of no time may end before it sees it
		r.step()
	}
	r.f.Until("the first try", func() bool { return len(r.f.Signers) > 0 })
	r.due()
	r.converge()
	second := r.serial()
	require.NotEqual(t, first, second)
	renewed.Store(true)
	require.Equal(t, task.Succeeded, r.f.Result(p.TaskID).Status)
	require.Equal(t, first, r.f.Signers[0])
	require.Equal(t, second, r.f.Signers[len(r.f.Signers)-1])
	r.agent.Wait()
}

// A result whose signature is refused was altered on its way, or its reader is
// wrong: it is kept and posted until it is taken.
func TestKeepResultAfterRejectedSignature(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.OnResult = func(n int, _ string, _ task.Result) error {
		if n <= 3 {
			return agenttest.IdentityError(schema.ReasonResultSignature)
		}
		return nil
	}
	a := start(t, configFor(f), Deps{Executors: script{task.FactsCollect: counting(new(atomic.Int32))}.executors()})
	p := f.Payload(task.FactsCollect, 1, nil)
	f.Offers <- f.OfferOf(p, 1)
	require.Equal(t, task.Succeeded, f.Result(p.TaskID).Status)
	require.Contains(t, a.log.String(), "task result not delivered")
	require.Equal(t, 1, f.Count("enroll"), "the identity is as good as before")
}
