package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// badTask is an envelope that must be refused, and the reason.
type badTask struct {
	envelope json.RawMessage
	reason   string
}

// badTasks is the corpus: every way an envelope can be wrong but one.
func badTasks(f *fakeAPI) map[string]badTask {
	body := func(change func(*task.Payload)) []byte {
		p := f.payload(task.WorkloadCordon, 1, nil)
		change(&p)
		return f.body(p)
	}
	sign := func(b []byte) json.RawMessage { return signBytes(f.t, f.signer, task.PayloadType, b) }
	changed := func(change func(*task.Payload)) json.RawMessage { return sign(body(change)) }
	whole := body(func(*task.Payload) {})
	good := sign(whole)
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.t.Fatal(err)
	}
	replace := func(old, with string) json.RawMessage {
		return sign(bytes.Replace(whole, []byte(old), []byte(with), 1))
	}
	outer := func(old, with string) json.RawMessage {
		return bytes.Replace(bytes.Clone(good), []byte(old), []byte(with), 1)
	}
	now := time.Now()
	return map[string]badTask{
		"another key":         {signBytes(f.t, stranger, task.PayloadType, whole), refusedSignature},
		"staged key":          {signAs(f.t, edSigner{f.staged, "k2"}, task.PayloadType, whole), refusedSignature},
		"staged key unnamed":  {signAs(f.t, edSigner{f.staged, ""}, task.PayloadType, whole), refusedSignature},
		"staged key misnamed": {signAs(f.t, edSigner{f.staged, "k1"}, task.PayloadType, whole), refusedSignature},
		"other payload type":  {signBytes(f.t, f.signer, "application/json", whole), refusedType},
		"payload type swapped after signing": {
			bytes.Replace(signBytes(f.t, f.signer, "application/json", whole), []byte("application/json"), []byte(task.PayloadType), 1),
			refusedSignature,
		},
		"no signature":                 {json.RawMessage(`{"payloadType":"` + task.PayloadType + `","payload":"e30=","signatures":[]}`), refusedEnvelope},
		"many signatures":              {manySignatures(good), refusedEnvelope},
		"key id of nobody":             {outer(`"keyid":"k1"`, `"keyid":"k9"`), refusedSignature},
		"unknown outer field":          {outer(`{"payloadType"`, `{"x":1,"payloadType"`), refusedEnvelope},
		"outer field twice":            {outer(`{"payloadType"`, `{"payload":"e30=","payloadType"`), refusedEnvelope},
		"data after":                   {append(bytes.Clone(good), " {}"...), refusedEnvelope},
		"not json":                     {json.RawMessage(`not json`), refusedEnvelope},
		"empty":                        {nil, refusedEnvelope},
		"null":                         {json.RawMessage(`null`), refusedType},
		"too large":                    {changed(func(p *task.Payload) { p.WorkflowID = strings.Repeat("x", wire.MaxBodyBytes) }), refusedTooLarge},
		"body not a task":              {sign([]byte(`[]`)), refusedBody},
		"unknown field":                {replace(`{"v":1`, `{"v":1,"shell":"rm"`), refusedBody},
		"field twice":                  {replace(`{"v":1`, `{"v":1,"env":"prod"`), refusedBody},
		"field twice by case":          {replace(`{"v":1`, `{"v":1,"ENV":"prod"`), refusedBody},
		"data after the body":          {sign(append(bytes.Clone(whole), "{}"...)), refusedBody},
		"another digest of the params": {changed(func(p *task.Payload) { p.ParamsSHA256 = digestOf([]byte("{}")) }), refusedParamsSum},
		"version of the type":          {changed(func(p *task.Payload) { p.TypeVersion = 2 }), refusedTypeVersion},
		"newer verifier set":           {changed(func(p *task.Payload) { p.MinSetVersion = 1 }), refusedSetBehind},
		"lease key":                    {signBytes(f.t, f.delegate, task.PayloadType, whole), refusedSignature},
		"lease key by its name":        {signAs(f.t, edSigner{f.delegate, "lease-1"}, task.PayloadType, whole), refusedSignature},
		"root key":                     {signAs(f.t, edSigner{f.root, "root"}, task.PayloadType, whole), refusedSignature},
		"a grant for a task":           {signBytes(f.t, f.signer, trust.LeasePayloadType, whole), refusedType},
		"version":                      {changed(func(p *task.Payload) { p.V = 2 }), refusedVersion},
		"no version":                   {changed(func(p *task.Payload) { p.V = 0 }), refusedVersion},
		"other env":                    {changed(func(p *task.Payload) { p.Env = "prod" }), refusedEnv},
		"other node":                   {changed(func(p *task.Payload) { p.NodeID = schema.NewID() }), refusedNode},
		"old incarnation":              {changed(func(p *task.Payload) { p.Incarnation = 0 }), refusedIncarn},
		"later incarnation":            {changed(func(p *task.Payload) { p.Incarnation = 2 }), refusedIncarn},
		"expired":                      {changed(func(p *task.Payload) { p.ExpiresAt = now.Add(-time.Second) }), refusedExpired},
		"no expiry":                    {changed(func(p *task.Payload) { p.ExpiresAt = time.Time{} }), refusedExpired},
		"not yet valid":                {changed(func(p *task.Payload) { p.NotBefore = now.Add(notBeforeSkew + time.Minute) }), refusedEarly},
		"unknown type":                 {changed(func(p *task.Payload) { p.Type = "shell.run" }), refusedTask},
		"no type":                      {changed(func(p *task.Payload) { p.Type = "" }), refusedTask},
		"gentler effect":               {changed(func(p *task.Payload) { p.Type = task.WorkloadDrain }), refusedEffect},
		"malformed id":                 {changed(func(p *task.Payload) { p.TaskID = "../../etc/passwd" }), refusedID},
		"params not wanted":            {changed(func(p *task.Payload) { p.Params = json.RawMessage(`{"x":1}`) }), refusedParams},
		"drain without deadline": {changed(func(p *task.Payload) {
			p.Type, p.Effect, p.Params = task.WorkloadDrain, task.EffectDestructive, json.RawMessage(`{"force":true}`)
		}), refusedParams},
		"drain with unknown params": {changed(func(p *task.Payload) {
			p.Type, p.Effect = task.WorkloadDrain, task.EffectDestructive
			p.Params = json.RawMessage(`{"deadline":"2030-01-01T00:00:00Z","signal":9}`)
		}), refusedParams},
		"sequence below the floor": {changed(func(p *task.Payload) { p.Seq = 0 }), refusedReplay},
	}
}

func manySignatures(envelope []byte) json.RawMessage {
	var e map[string]any
	_ = json.Unmarshal(envelope, &e)
	list, _ := e["signatures"].([]any)
	for range maxSignatures {
		list = append(list, list[0])
	}
	e["signatures"] = list
	out, _ := json.Marshal(e)
	return out
}

// TestBadTasks: every envelope of the corpus is refused with its reason, the
// server hears of it, and nothing is executed or journalled.
func TestBadTasks(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	corpus := badTasks(f)
	ran := make(chan task.Type, 1)
	execs := map[task.Type]Executor{}
	for _, row := range task.Types() {
		check := noParams
		if row.Type == task.WorkloadDrain {
			check = checkDrain
		}
		execs[row.Type] = Executor{Check: check, Run: func(context.Context, Task) (any, error) { ran <- row.Type; return nil, nil }}
	}
	a := start(t, f.config(), Deps{Executors: execs})
	for name, bad := range corpus {
		o := wire.TaskOffer{TaskID: offeredID(f, bad.envelope), Envelope: bad.envelope, Lease: task.Lease{Epoch: 3}, ServerTime: time.Now()}
		if len(o.Envelope) == 0 || !json.Valid(o.Envelope) {
			continue // cannot be carried in an offer; see TestVerifierRefuses
		}
		f.offers <- o
		r := f.result(o.TaskID)
		require.Equal(t, task.Failed, r.Status, name)
		require.Equal(t, schema.KindTaskRefused, r.Code, name)
		require.Equal(t, int64(3), r.LeaseEpoch, name)
		require.True(t, strings.HasPrefix(r.Message, bad.reason+": "), "%s: %s", name, r.Message)
	}
	require.Empty(t, ran)
	require.Empty(t, a.tasks.journal.have())
}

// offeredID is an id of its own for each offer, or the signed one where the
// fault is not in what the verifier sees.
func offeredID(f *fakeAPI, envelope []byte) string {
	if v, err := f.verifier().check(envelope, time.Now()); err == nil {
		return v.payload.TaskID
	}
	return schema.NewID()
}

func (f *fakeAPI) verifier() verifier {
	return verifier{
		id: f.id, set: bundled(f.verifiers(), trust.VerifierSetRef{}), nonce: testNonce, clock: &trustedClock{local: time.Now},
	}
}

// testNonce is the nonce of a poll that a test makes up.
const testNonce = "0123456789abcdefABCDEF"

func TestVerifierRefuses(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	later := map[string]bool{refusedParams: true, refusedReplay: true} // need executors and the journal
	for name, bad := range badTasks(f) {
		if later[bad.reason] {
			continue
		}
		_, err := f.verifier().check(bad.envelope, time.Now())
		require.Equal(t, schema.KindTaskRefused, schema.KindOf(err), name)
		require.Equal(t, bad.reason, schema.AsError(err).Reason, name)
	}
}

func TestVerifierAccepts(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	p := f.payload(task.WorkloadCordon, 1, nil)
	p.NotBefore = time.Now().Add(notBeforeSkew - time.Minute).UTC()
	got, err := f.verifier().check(f.envelope(p), time.Now())
	require.NoError(t, err)
	require.Equal(t, p.TaskID, got.payload.TaskID)

	v := f.verifier()
	v.set.keys[0].State = trust.KeyGrace
	_, err = v.check(f.envelope(p), time.Now())
	require.NoError(t, err, "a key in grace")
	nameless := bytes.Replace(f.envelope(p), []byte(`"keyid":"k1"`), []byte(`"keyid":""`), 1)
	_, err = v.check(nameless, time.Now())
	require.NoError(t, err, "the key id only narrows the search")
}

// TestBitFlips: no envelope with one bit changed gives another task. Two bits of
// each byte are tried.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	good := f.envelope(f.payload(task.WorkloadCordon, 1, nil))
	want, err := f.verifier().check(good, time.Now())
	require.NoError(t, err)
	accepted := 0
	for i := range good {
		for _, bit := range []int{i % 8, (i + 3) % 8} {
			flipped := bytes.Clone(good)
			flipped[i] ^= 1 << bit
			got, err := f.verifier().check(flipped, time.Now())
			if err == nil {
				// The last base64 digit of a signature holds unused bits, and
				// names match without regard to case: the same bytes were signed.
				accepted++
				require.Equal(t, want.raw, got.raw, "byte %d bit %d", i, bit)
				continue
			}
			require.Equal(t, schema.KindTaskRefused, schema.KindOf(err))
		}
	}
	require.Less(t, accepted, 64)
}

// FuzzVerify: whatever is accepted was signed by an accepted key, by a check of
// its own; whatever is refused is refused with a reason.
func FuzzVerify(f *testing.F) {
	api := newFakeAPI(f)
	// Fixed, because the fuzzer's workers share inputs.
	api.signer = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	api.staged = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, ed25519.SeedSize))
	api.id.NodeID = "01890000-0000-7000-8000-000000000001"
	f.Add([]byte(api.envelope(api.payload(task.WorkloadCordon, 1, nil))))
	for _, bad := range badTasks(api) {
		f.Add([]byte(bad.envelope))
	}
	v := api.verifier()
	f.Fuzz(func(t *testing.T, envelope []byte) {
		got, err := v.check(envelope, time.Now())
		switch {
		case err == nil && !signedBy(v.set.keys[0].Public, envelope, got.raw):
			t.Fatalf("accepted what was never signed: %s", got.raw)
		case err != nil && schema.KindOf(err) != schema.KindTaskRefused:
			t.Fatalf("untyped refusal: %v", err)
		case err != nil && schema.AsError(err).Reason == "":
			t.Fatalf("refusal without a reason: %v", err)
		}
	})
}

// signedBy checks a DSSE envelope in the plainest way.
func signedBy(key ed25519.PublicKey, envelope, raw []byte) bool {
	var e struct{ Signatures []struct{ Sig string } }
	if json.Unmarshal(envelope, &e) != nil {
		return false
	}
	pae := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(task.PayloadType), task.PayloadType, len(raw), raw)
	return slices.ContainsFunc(e.Signatures, func(s struct{ Sig string }) bool {
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			if sig, err := enc.DecodeString(s.Sig); err == nil && ed25519.Verify(key, pae, sig) {
				return true
			}
		}
		return false
	})
}
