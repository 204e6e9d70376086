package agent

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// badGrant is a way in which a grant is not one for the offer, and the reason.
type badGrant struct {
	reason string
	issue  func(f *fakeAPI)                                 // how the server is wrong
	task   func(p *task.Payload)                            // how the task is
	offer  func(f *fakeAPI, o *wire.TaskOffer, good string) // how the answer is
}

func grantThat(change func(*task.Grant)) func(*fakeAPI) {
	return func(f *fakeAPI) { f.onGrant = change }
}

func keyThat(change func(*trust.LeaseKey)) func(*fakeAPI) {
	return func(f *fakeAPI) { f.onKey = change }
}

// badGrants is the corpus of offers whose task is good and whose grant is not.
func badGrants() map[string]badGrant {
	return map[string]badGrant{
		"other nonce":          {reason: refusedNonce, issue: grantThat(func(g *task.Grant) { g.Nonce = newNonce() })},
		"no nonce":             {reason: refusedNonce, issue: grantThat(func(g *task.Grant) { g.Nonce = "" })},
		"another task":         {reason: refusedGranted, issue: grantThat(func(g *task.Grant) { g.TaskID = schema.NewID() })},
		"another envelope":     {reason: refusedGranted, issue: grantThat(func(g *task.Grant) { g.EnvelopeSHA256 = digestOf(nil) })},
		"another lease":        {reason: refusedEpoch, issue: grantThat(func(g *task.Grant) { g.LeaseEpoch++ })},
		"another operation":    {reason: refusedExpectation, issue: grantThat(func(g *task.Grant) { g.OpSeq++ })},
		"another state":        {reason: refusedExpectation, task: func(p *task.Payload) { p.Expect.NodeState = lifecycle.NodeDraining }},
		"other environment":    {reason: ofGrant + refusedEnv, issue: grantThat(func(g *task.Grant) { g.Env = "prod" })},
		"other node":           {reason: refusedGrantNode, issue: grantThat(func(g *task.Grant) { g.NodeID = schema.NewID() })},
		"old incarnation":      {reason: refusedGrantNode, issue: grantThat(func(g *task.Grant) { g.Incarnation = 0 })},
		"version":              {reason: ofGrant + refusedVersion, issue: grantThat(func(g *task.Grant) { g.V = 2 })},
		"by the task key":      {reason: ofGrant + refusedSignature, issue: func(f *fakeAPI) { f.grantSigner = f.signer }},
		"by a stranger":        {reason: ofGrant + refusedSignature, issue: func(f *fakeAPI) { f.grantSigner = newKey(f.t) }},
		"by the root":          {reason: ofGrantKey + refusedSignature, issue: func(f *fakeAPI) { f.keySigner = f.root }},
		"by a staged key":      {reason: ofGrantKey + refusedSignature, issue: func(f *fakeAPI) { f.keySigner = f.staged }},
		"delegated by itself":  {reason: ofGrantKey + refusedSignature, issue: func(f *fakeAPI) { f.keySigner = f.delegate }},
		"delegation expired":   {reason: refusedKeyTime, issue: keyThat(func(k *trust.LeaseKey) { k.NotAfter = time.Now().Add(-time.Second) })},
		"delegation to come":   {reason: refusedKeyTime, issue: keyThat(func(k *trust.LeaseKey) { k.NotBefore = time.Now().Add(time.Hour) })},
		"delegation of prod":   {reason: ofGrantKey + refusedEnv, issue: keyThat(func(k *trust.LeaseKey) { k.Env = "prod" })},
		"delegation of no key": {reason: ofGrantKey + refusedBody, issue: keyThat(func(k *trust.LeaseKey) { k.Public = "" })},
		"delegation version":   {reason: ofGrantKey + refusedVersion, issue: keyThat(func(k *trust.LeaseKey) { k.V = 0 })},
		"task key delegated": {reason: refusedDelegate, issue: func(f *fakeAPI) {
			f.grantSigner = f.signer
			f.onKey = func(k *trust.LeaseKey) { k.Public = base64.StdEncoding.EncodeToString(publicOf(f.signer)) }
		}},
		"no grant": {reason: ofGrant + refusedType, offer: func(_ *fakeAPI, o *wire.TaskOffer, _ string) { o.Grant = json.RawMessage(`{}`) }},
		"no delegation": {reason: ofGrantKey + refusedType, offer: func(_ *fakeAPI, o *wire.TaskOffer, _ string) {
			o.GrantKey = json.RawMessage(`null`)
		}},
		"task in the place of the grant": {reason: ofGrant + refusedType, offer: func(_ *fakeAPI, o *wire.TaskOffer, _ string) { o.Grant = o.Envelope }},
		"grant in the place of the task": {reason: refusedType, offer: func(_ *fakeAPI, o *wire.TaskOffer, _ string) { o.Envelope = o.Grant }},
		"unknown field": {reason: ofGrant + refusedBody, offer: func(f *fakeAPI, o *wire.TaskOffer, _ string) {
			o.Grant = signBytes(f.t, f.delegate, trust.LeasePayloadType, []byte(`{"x":1}`))
			o.Grant = bytes.Replace(o.Grant, []byte(`"keyid":"k1"`), []byte(`"keyid":""`), 1)
		}},
		"data after the grant": {reason: ofGrant + refusedEnvelope, offer: func(_ *fakeAPI, o *wire.TaskOffer, _ string) {
			o.Grant = append(bytes.Clone(o.Grant), " {}"...)
		}},
		"too large": {reason: ofGrant + refusedTooLarge, issue: grantThat(func(g *task.Grant) { g.SetHash = strings.Repeat("x", wire.MaxBodyBytes) })},
	}
}

// wrongOffer is one offer of the corpus, for a poll's nonce.
func (f *fakeAPI) wrongOffer(bad badGrant, seq int64, nonce string) wire.TaskOffer {
	p := f.payload(task.WorkloadCordon, seq, nil)
	if bad.task != nil {
		bad.task(&p)
	}
	o := f.offerOf(p, 3)
	if bad.issue != nil {
		bad.issue(f)
	}
	o = f.granted(o, nonce)
	if bad.offer != nil {
		bad.offer(f, &o, nonce)
	}
	return o
}

// TestBadGrants: each offer of the corpus is refused with its reason.
func TestBadGrants(t *testing.T) {
	t.Parallel()
	for name, bad := range badGrants() {
		f := newQuietAPI(t)
		_, err := f.verifier().judge(f.wrongOffer(bad, 1, testNonce))
		require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), name)
		require.Equal(t, bad.reason, schema.AsError(err).Reason, name)
	}
}

// TestBadGrantsAreReported and executed by no agent.
func TestBadGrantsAreReported(t *testing.T) {
	t.Parallel()
	for name, bad := range badGrants() {
		if bad.offer != nil {
			continue // what is carried over HTTP is compacted, or has another digest
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			if bad.issue != nil {
				bad.issue(f)
			}
			var runs atomic.Int32
			a := start(t, f.config(), Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()})
			p := f.payload(task.WorkloadCordon, 1, nil)
			if bad.task != nil {
				bad.task(&p)
			}
			f.offers <- f.offerOf(p, 1)
			r := f.result(p.TaskID)
			require.Equal(t, schema.KindTaskRefused, r.Code)
			require.True(t, strings.HasPrefix(r.Message, bad.reason+": "), r.Message)
			require.Zero(t, runs.Load())
			require.Empty(t, a.tasks.journal.have())
		})
	}
}

// TestOldAnswerIsNoAnswer: an offer that was good for one poll is refused by the
// next, by the next process, and after the journal forgot the task.
func TestOldAnswerIsNoAnswer(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	var runs atomic.Int32
	deps := Deps{Executors: script{task.WorkloadCordon: counting(&runs)}.executors()}
	a := start(t, c, deps)
	p := f.payload(task.WorkloadCordon, 1, nil)
	o := f.offerOf(p, 1)
	var nonce string
	f.note(func() { f.onGrant = func(g *task.Grant) { nonce = g.Nonce } })
	f.offers <- o
	f.result(p.TaskID)
	eventually(t, "the report in the journal", func() bool { return len(a.tasks.journal.have()) == 0 })
	f.note(func() { f.onGrant = nil })
	stale := f.granted(o, nonce)

	replay := func(a *running) {
		n := strings.Count(a.log.String(), refusedNonce)
		f.offers <- stale
		eventually(t, "the refusal", func() bool { return strings.Count(a.log.String(), `"reason":"`+refusedNonce) > n })
	}
	replay(a)
	require.NoError(t, a.tasks.journal.prune(p.ExpiresAt.Add(keepAfterExpiry+time.Second)))
	a.halt()
	f.deserted()
	b := start(t, c, deps)
	replay(b)
	require.Equal(t, int32(1), runs.Load())
}

// TestExpiredSet: nothing destructive is begun by it, the rest goes on.
func TestExpiredSet(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	v := f.verifier()
	v.set.expires = time.Now().Add(-time.Minute)
	for _, row := range task.Types() {
		_, err := v.judge(f.granted(f.offerOf(f.payload(row.Type, 1, nil), 1), testNonce))
		if row.Effect != task.EffectDestructive {
			require.NoError(t, err, row.Type)
			continue
		}
		require.Equal(t, refusedSetExpired, schema.AsError(err).Reason, row.Type)
	}
}

// TestForkedSetInAGrant is refused: two sets of one version cannot both be true.
func TestForkedSetInAGrant(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	v := f.verifier()
	v.set.version, v.set.hash = 2, digestOf([]byte("mine"))
	f.onGrant = func(g *task.Grant) { g.SetVersion, g.SetHash = 2, digestOf([]byte("other")) }
	o := f.offerOf(f.payload(task.WorkloadCordon, 1, nil), 1)
	_, err := v.judge(f.granted(o, testNonce))
	require.Equal(t, refusedSetFork, schema.AsError(err).Reason)
	f.onGrant = func(g *task.Grant) { g.SetVersion, g.SetHash = 1, digestOf([]byte("older")) }
	_, err = v.judge(f.granted(o, testNonce))
	require.NoError(t, err, "a replica that is behind")
}

// TestTimeIsTheServers: the node's clock has no say, and what was once told is
// never gone back on.
func TestTimeIsTheServers(t *testing.T) {
	t.Parallel()
	year := 365 * 24 * time.Hour
	for name, off := range map[string]time.Duration{"ahead": year, "behind": -year} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newQuietAPI(t)
			v := f.verifier()
			v.clock = &trustedClock{local: func() time.Time { return time.Now().Add(off) }}
			_, err := v.judge(f.granted(f.offerOf(f.payload(task.WorkloadCordon, 1, nil), 1), testNonce))
			require.NoError(t, err)
			old := f.payload(task.WorkloadCordon, 2, nil)
			old.ExpiresAt = time.Now().Add(-time.Second)
			f.clock = func() time.Time { return time.Now().Add(-time.Hour) } // a replica that is behind
			_, err = v.judge(f.granted(f.offerOf(old, 1), testNonce))
			require.Equal(t, refusedExpired, schema.AsError(err).Reason)
		})
	}
}

// TestRefusedGrantTellsNoTime: a delegation bounds how far its replica can move
// the node's time.
func TestRefusedGrantTellsNoTime(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	v := f.verifier()
	f.onGrant = func(g *task.Grant) { g.ServerTime = time.Now().Add(10000 * time.Hour) }
	o := f.offerOf(f.payload(task.WorkloadCordon, 1, nil), 1)
	_, err := v.judge(f.granted(o, testNonce))
	require.Equal(t, refusedKeyTime, schema.AsError(err).Reason)
	require.True(t, v.clock.now().IsZero())
}

// TestBitFlipsOfAnOffer: an offer with one bit changed anywhere, in envelope,
// grant or delegation, is the same task or none. Each byte is tried.
func TestBitFlipsOfAnOffer(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	p := f.payload(task.WorkloadCordon, 1, nil)
	good := f.granted(f.offerOf(p, 1), testNonce)
	v := f.verifier()
	want, err := v.judge(good)
	require.NoError(t, err)
	draws := rand.New(rand.NewPCG(1, 1))
	accepted := 0
	for name, pick := range map[string]func(*wire.TaskOffer) *json.RawMessage{
		"envelope": func(o *wire.TaskOffer) *json.RawMessage { return &o.Envelope },
		"grant":    func(o *wire.TaskOffer) *json.RawMessage { return &o.Grant },
		"key":      func(o *wire.TaskOffer) *json.RawMessage { return &o.GrantKey },
	} {
		for i := range *pick(&good) {
			o := good
			part := pick(&o)
			*part = bytes.Clone(*part)
			(*part)[i] ^= 1 << draws.IntN(8)
			got, err := v.judge(o)
			if err == nil {
				accepted++
				require.Equal(t, want.raw, got.raw, "%s byte %d", name, i)
				continue
			}
			require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), "%s byte %d", name, i)
			require.NotEmpty(t, schema.AsError(err).Reason, "%s byte %d", name, i)
		}
	}
	require.Less(t, accepted, 100)
}

// TestKnownTaskPastItsTime: the journal's own task may be offered again past its
// time, since nothing new is begun.
func TestKnownTaskPastItsTime(t *testing.T) {
	t.Parallel()
	f := newQuietAPI(t)
	p := f.payload(task.WorkloadCordon, 1, nil)
	p.ExpiresAt = time.Now().Add(-time.Second)
	o := f.granted(f.offerOf(p, 1), testNonce)
	v := f.verifier()
	_, err := v.judge(o)
	require.Equal(t, refusedExpired, schema.AsError(err).Reason)
	v.known = func(taskID, digest string) bool { return taskID == p.TaskID && digest == digestOf(f.body(p)) }
	_, err = v.judge(o)
	require.NoError(t, err)
}

// FuzzDecode is B39: what was verified is what is executed. A body that the
// strict decoder takes reads the same for a plain one and at a restart.
func FuzzDecode(f *testing.F) {
	api := newQuietAPI(f)
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	f.Add(api.body(api.payload(task.WorkloadCordon, 1, nil)))
	for _, s := range []string{`{"v":1,"V":2}`, `{"env":"a","env":"b"}`, `{"v":1}{"v":2}`, `{"params":{"a":1,"a":2}}`, "{\"env\":\"\\ud800\"}", `[]`, `null`} {
		f.Add([]byte(s))
	}
	keys := []trust.VerifierKey{{State: trust.KeyActive, KeyID: "k1", Public: publicOf(key)}}
	f.Fuzz(func(t *testing.T, body []byte) {
		var p task.Payload
		raw, _, err := taskDocument().read(signBytes(t, key, task.PayloadType, body), keys, &p)
		if err != nil {
			return
		}
		require.Equal(t, body, raw)
		var plain task.Payload
		require.NoError(t, json.Unmarshal(raw, &plain))
		require.Equal(t, plain, p)
		again, err := entry{Payload: raw}.task() // as a restart reads it
		require.NoError(t, err)
		require.Equal(t, p, again)
	})
}
