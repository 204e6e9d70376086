package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// issuer signs grants and hands out verifier sets.
type issuer struct {
	root     ed25519.PrivateKey // of verifier sets
	delegate ed25519.PrivateKey // of grants
	// clock is the server's.
	clock func() time.Time
	// onGrant changes a grant before it is signed; onKey its delegation.
	onGrant func(*task.Grant)
	onKey   func(*trust.LeaseKey)
	// The keys that sign; nil for the issuer's own.
	grantSigner, keySigner ed25519.PrivateKey

	// shown is what sets are handed out: after names the first version.
	shown func(after int64) []json.RawMessage
	name  func() string // of the newest set; nil names none
}

func newIssuer(tb testing.TB) issuer {
	tb.Helper()
	return issuer{root: newKey(tb), delegate: newKey(tb), clock: time.Now}
}

func newKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(tb, err)
	return key
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}

// trust is what a bundle of this server says.
func (f *fakeAPI) trust() trust.TaskTrust {
	return trust.TaskTrust{Keys: f.verifiers(), Roots: []trust.VerifierKey{{State: "root", KeyID: "root", Public: publicOf(f.root)}}}
}

func (f *fakeAPI) newest() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.name == nil {
		return ""
	}
	return f.name()
}

func (f *fakeAPI) setsAfter(r *http.Request) (any, error) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "bad after")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := trust.VerifierSets{Sets: []json.RawMessage{}}
	if f.shown != nil {
		out.Sets = append(out.Sets, f.shown(after)...)
	}
	return out, nil
}

// granted adds a grant for a poll's nonce, unless the offer has one.
func (f *fakeAPI) granted(o wire.TaskOffer, nonce string) wire.TaskOffer {
	if o.Grant != nil {
		return o
	}
	o.Grant, o.GrantKey = f.grantFor(o, nonce)
	return o
}

// grantFor is what the server says of an offer: what the signed body says,
// where it reads.
func (f *fakeAPI) grantFor(o wire.TaskOffer, nonce string) (grant, key json.RawMessage) {
	var e dsse.Envelope
	var p task.Payload
	raw := []byte{}
	if json.Unmarshal(o.Envelope, &e) == nil {
		if body, err := e.DecodeB64Payload(); err == nil {
			raw = body
			_ = json.Unmarshal(body, &p)
		}
	}
	g := task.Grant{
		V: 1, Env: f.id.Env, NodeID: f.id.NodeID, Incarnation: f.id.Incarnation, Nonce: nonce, ServerTime: f.clock().UTC(),
		TaskID: p.TaskID, EnvelopeSHA256: digestOf(raw), LeaseEpoch: o.Lease.Epoch, LeaseUntil: o.Lease.ExpiresAt,
		NodeState: lifecycle.NodeActive, OpSeq: p.Expect.OpSeq,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onGrant != nil {
		f.onGrant(&g)
	}
	d := trust.LeaseKey{
		V: 1, Env: f.id.Env, KeyID: "lease-1", Public: base64.StdEncoding.EncodeToString(publicOf(f.delegate)),
		NotBefore: f.clock().UTC().Add(-time.Minute), NotAfter: f.clock().UTC().Add(trust.LeaseKeyLifetime),
	}
	if f.onKey != nil {
		f.onKey(&d)
	}
	signer, keySigner := f.grantSigner, f.keySigner
	if signer == nil {
		signer = f.delegate
	}
	if keySigner == nil {
		keySigner = f.signer
	}
	return signJSON(f.t, edSigner{signer, ""}, trust.LeasePayloadType, g),
		signJSON(f.t, edSigner{keySigner, ""}, trust.LeaseKeyPayloadType, d)
}

func signJSON(tb testing.TB, signer edSigner, payloadType string, v any) json.RawMessage {
	tb.Helper()
	body, err := json.Marshal(v)
	require.NoError(tb, err)
	return signAs(tb, signer, payloadType, body)
}

// signWith signs a document with several keys.
func signWith(tb testing.TB, payloadType string, v any, keys ...edSigner) json.RawMessage {
	tb.Helper()
	var signers []dsse.Signer
	for _, k := range keys {
		signers = append(signers, k)
	}
	s, err := dsse.NewEnvelopeSigner(signers...)
	require.NoError(tb, err)
	body, err := json.Marshal(v)
	require.NoError(tb, err)
	e, err := s.SignPayload(tb.Context(), payloadType, body)
	require.NoError(tb, err)
	out, err := json.Marshal(e)
	require.NoError(tb, err)
	return out
}

type edSigner struct {
	key ed25519.PrivateKey
	id  string
}

func (s edSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.key, data), nil
}
func (s edSigner) KeyID() (string, error) { return s.id, nil }

func signBytes(tb testing.TB, key ed25519.PrivateKey, payloadType string, body []byte) json.RawMessage {
	tb.Helper()
	return signAs(tb, edSigner{key, "k1"}, payloadType, body)
}

func signAs(tb testing.TB, signer edSigner, payloadType string, body []byte) json.RawMessage {
	tb.Helper()
	s, err := dsse.NewEnvelopeSigner(signer)
	require.NoError(tb, err)
	e, err := s.SignPayload(tb.Context(), payloadType, body)
	require.NoError(tb, err)
	out, err := json.Marshal(e)
	require.NoError(tb, err)
	return out
}
