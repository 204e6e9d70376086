package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/verify"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestReportBadGrants and executed by no agent.
func TestReportBadGrants(t *testing.T) {
	t.Parallel()
	for name, bad := range agenttest.BadGrants() {
		if bad.Offer != nil {
			continue // what is carried over HTTP is compacted, or has another digest
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			if bad.Issue != nil {
				bad.Issue(f)
			}
			var runs atomic.Int32
			a := start(t, configFor(f), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
			p := f.Payload(task.WorkloadCordon, 1, nil)
			if bad.Task != nil {
				bad.Task(&p)
			}
			f.Offers <- f.OfferOf(p, 1)
			r := f.Result(p.TaskID)
			require.Equal(t, schema.KindTaskRefused, r.Code)
			require.True(t, strings.HasPrefix(r.Message, bad.Reason+": "), r.Message)
			require.Zero(t, runs.Load())
			require.Empty(t, a.journal.Held())
		})
	}
}

// TestRejectOldAnswer: an offer that was good for one poll is refused by the
// next, by the next process, and after the journal forgot the task.
func TestRejectOldAnswer(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	var runs atomic.Int32
	deps := Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()}
	a := start(t, c, deps)
	p := f.Payload(task.WorkloadCordon, 1, nil)
	o := f.OfferOf(p, 1)
	var nonce string
	f.Note(func() { f.OnGrant = func(g *task.Grant) { nonce = g.Nonce } })
	f.Offers <- o
	f.Result(p.TaskID)
	eventually(t, "the report in the journal", func() bool { return len(a.journal.Held()) == 0 })
	f.Note(func() { f.OnGrant = nil })
	stale := f.Granted(o, nonce)

	replay := func(a *running) {
		n := strings.Count(a.log.String(), "grant_other_nonce")
		f.Offers <- stale
		eventually(t, "the refusal", func() bool { return strings.Count(a.log.String(), `"reason":"`+"grant_other_nonce") > n })
	}
	replay(a)
	require.NoError(t, a.journal.Prune(p.ExpiresAt.Add(10*time.Minute+time.Second)))
	a.halt()
	f.Deserted()
	b := start(t, c, deps)
	replay(b)
	require.Equal(t, int32(1), runs.Load())
}

// TestRejectBadTasks: every envelope of the corpus is rejected with its reason,
// the rejection is reported, and nothing is executed or journaled.
func TestRejectBadTasks(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	corpus := agenttest.BadTasks(f)
	ran := make(chan task.Type, 1)
	execs := map[task.Type]runner.Executor{}
	for _, row := range task.Types() {
		check := runner.NoParams
		if row.Type == task.WorkloadDrain {
			check = workload.CheckDrain
		}
		execs[row.Type] = runner.Executor{Check: check, Run: func(context.Context, runner.Task) (any, error) { ran <- row.Type; return nil, nil }}
	}
	a := start(t, configFor(f), Deps{Executors: execs})
	for name, bad := range corpus {
		o := wire.TaskOffer{TaskID: offeredID(t, bad), Envelope: bad.Envelope, Lease: task.Lease{Epoch: 3}, ServerTime: time.Now()}
		if len(o.Envelope) == 0 || !json.Valid(o.Envelope) {
			continue // cannot be carried in an offer; see TestVerifyRejects
		}
		f.Offers <- o
		r := f.Result(o.TaskID)
		require.Equal(t, task.Failed, r.Status, name)
		require.Equal(t, schema.KindTaskRefused, r.Code, name)
		require.Equal(t, int64(3), r.LeaseEpoch, name)
		require.True(t, strings.HasPrefix(r.Message, bad.Reason+": "), "%s: %s", name, r.Message)
	}
	require.Empty(t, ran)
	require.Empty(t, a.journal.Held())
}

// offeredID is the signed id where the verifier accepts the envelope, else an id of
// its own for each offer.
func offeredID(t *testing.T, bad agenttest.BadTask) string {
	t.Helper()
	if bad.Reason != "bad_params" && bad.Reason != "replayed_seq" {
		return schema.NewID()
	}
	var e dsse.Envelope
	require.NoError(t, json.Unmarshal(bad.Envelope, &e))
	body, err := e.DecodeB64Payload()
	require.NoError(t, err)
	return decode[task.Payload](t, body).TaskID
}

// says which set is in use.
func TestRotation(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := agenttest.NewChain(t, f)
	a := start(t, configFor(f), Deps{})
	seq := int64(0)
	do := func(by ed25519.PrivateKey, least int64) task.Result {
		t.Helper()
		seq++
		p := f.Payload(task.UpdateTrust, seq, nil)
		p.MinSetVersion = least
		o := f.OfferOf(p, 1)
		o.Envelope = agenttest.SignAs(t, agenttest.EdSigner{Key: by, ID: ""}, task.PayloadType, f.Body(p))
		f.Offers <- o
		return f.Result(p.TaskID)
	}
	r := do(f.Signer, 1)
	require.Equal(t, task.Succeeded, r.Status, r.Message)
	require.Equal(t, trust.TrustResult{SetVersion: 1, SetHash: c.Hash[0], CABundleFingerprint: trust.Fingerprint(string(f.Server.PEM)),
		NodeCertCABundleFingerprint: trust.Fingerprint(string(f.Nodes.PEM))}, decode[trust.TrustResult](t, r.Output))

	old, next := f.Signer, agenttest.NewKey(t)
	was := func(state trust.KeyState) func(*trust.VerifierSetDoc) {
		return func(d *trust.VerifierSetDoc) {
			d.Keys = append(d.Keys, trust.VerifierKey{KeyID: "k1", Public: agenttest.PublicOf(old), State: state})
		}
	}
	for i, state := range []trust.KeyState{trust.KeyGrace, trust.KeyRevoked} {
		f.Note(func() { c.Add(next, was(state)); f.KeySigner = next })
		version := int64(i + 2)
		require.Equal(t, task.Succeeded, do(next, version).Status)
		require.Equal(t, version, a.sets.Current().Doc.Version)
		r := do(old, 0)
		if state == trust.KeyGrace {
			require.Equal(t, task.Succeeded, r.Status, r.Message)
			continue
		}
		require.True(t, strings.HasPrefix(r.Message, "bad_signature"), r.Message)
	}
	s, err := ReadStatus(t.Context(), a.conf)
	require.NoError(t, err)
	require.Equal(t, &verify.Status{Version: 3, Hash: c.Hash[2], ExpiresAt: c.Set[2].ExpiresAt}, s.VerifierSet)
}
