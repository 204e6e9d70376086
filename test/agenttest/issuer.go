package agenttest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
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

// issuer signs grants and returns verifier sets.
type issuer struct {
	Root     ed25519.PrivateKey // of verifier sets
	delegate ed25519.PrivateKey // of grants
	// Clock is the server's.
	Clock func() time.Time
	// OnGrant changes a grant before it is signed; onKey its delegation.
	OnGrant func(*task.Grant)
	onKey   func(*trust.LeaseKey)
	// The keys that sign; nil for the issuer's own.
	grantSigner, KeySigner ed25519.PrivateKey

	// shown returns the sets above a version.
	shown func(after int64) []json.RawMessage
	name  func() string // of the newest set; nil names none
}

func newIssuer(tb testing.TB) issuer {
	tb.Helper()
	return issuer{Root: NewKey(tb), delegate: NewKey(tb), Clock: time.Now}
}

func NewKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(tb, err)
	return key
}

func PublicOf(key ed25519.PrivateKey) ed25519.PublicKey {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}

// Trust returns the task trust of this server's bundle.
func (f *API) Trust() trust.TaskTrust {
	return trust.TaskTrust{Keys: f.Verifiers(), Roots: []trust.VerifierKey{{State: "root", KeyID: "root", Public: PublicOf(f.Root)}}}
}

func (f *API) newest() string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.name == nil {
		return ""
	}
	return f.name()
}

func (f *API) setsAfter(r *http.Request) (any, error) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return nil, schema.NewError(schema.KindInvalidRequest, "bad after")
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	out := trust.VerifierSets{Sets: []json.RawMessage{}}
	if f.shown != nil {
		out.Sets = append(out.Sets, f.shown(after)...)
	}
	return out, nil
}

// Granted adds a grant for a poll's nonce, unless the offer has one.
func (f *API) Granted(o wire.TaskOffer, nonce string) wire.TaskOffer {
	if o.Grant != nil {
		return o
	}
	o.Grant, o.GrantKey = f.grantFor(o, nonce)
	return o
}

// grantFor makes the grant of an offer and its delegation. Its fields are those of the
// signed body, if it can be parsed.
func (f *API) grantFor(o wire.TaskOffer, nonce string) (grant, key json.RawMessage) {
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
		V: 1, Env: f.ID.Env, NodeID: f.ID.NodeID, Incarnation: f.ID.Incarnation, Nonce: nonce, ServerTime: f.Clock().UTC(),
		TaskID: p.TaskID, EnvelopeSHA256: schema.SHA256Hex(raw), LeaseEpoch: o.Lease.Epoch, LeaseUntil: o.Lease.ExpiresAt,
		NodeState: lifecycle.NodeActive, OpSeq: p.Expect.OpSeq,
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.OnGrant != nil {
		f.OnGrant(&g)
	}
	d := trust.LeaseKey{
		V: 1, Env: f.ID.Env, KeyID: "lease-1", Public: PublicOf(f.delegate),
		NotBefore: f.Clock().UTC().Add(-time.Minute), NotAfter: f.Clock().UTC().Add(trust.LeaseKeyLifetime),
	}
	if f.onKey != nil {
		f.onKey(&d)
	}
	signer, keySigner := f.grantSigner, f.KeySigner
	if signer == nil {
		signer = f.delegate
	}
	if keySigner == nil {
		keySigner = f.Signer
	}
	return SignWith(f.T, trust.LeasePayloadType, g, EdSigner{Key: signer}),
		SignWith(f.T, trust.LeaseKeyPayloadType, d, EdSigner{Key: keySigner})
}

// SignWith signs a document with several keys.
func SignWith(tb testing.TB, payloadType string, v any, keys ...EdSigner) json.RawMessage {
	tb.Helper()
	body, err := json.Marshal(v)
	require.NoError(tb, err)
	return signBody(tb, payloadType, body, keys)
}

func signBody(tb testing.TB, payloadType string, body []byte, keys []EdSigner) json.RawMessage {
	tb.Helper()
	var signers []dsse.Signer
	for _, k := range keys {
		signers = append(signers, k)
	}
	s, err := dsse.NewEnvelopeSigner(signers...)
	require.NoError(tb, err)
	e, err := s.SignPayload(tb.Context(), payloadType, body)
	require.NoError(tb, err)
	out, err := json.Marshal(e)
	require.NoError(tb, err)
	return out
}

type EdSigner struct {
	Key ed25519.PrivateKey
	ID  string
}

func (s EdSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.Key, data), nil
}

func (s EdSigner) KeyID() (string, error) { return s.ID, nil }

func SignBytes(tb testing.TB, key ed25519.PrivateKey, payloadType string, body []byte) json.RawMessage {
	tb.Helper()
	return SignAs(tb, EdSigner{Key: key, ID: "k1"}, payloadType, body)
}

func SignAs(tb testing.TB, signer EdSigner, payloadType string, body []byte) json.RawMessage {
	tb.Helper()
	return signBody(tb, payloadType, body, []EdSigner{signer})
}
