package agenttest

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Chain is a server's verifier sets, each signed by the root and by the active
// key of the one before.
type Chain struct {
	T    *testing.T
	F    *API
	Keys []ed25519.PrivateKey // active, by version
	Docs []json.RawMessage
	Set  []trust.VerifierSetDoc
	Hash []string
}

func NewChain(t *testing.T, f *API) *Chain {
	t.Helper()
	c := &Chain{T: t, F: f}
	c.Add(f.Signer, nil)
	f.shown = func(after int64) []json.RawMessage { return c.Docs[min(int(after), len(c.Docs)):] }
	f.name = func() string { return c.name(len(c.Docs)) }
	return c
}

func KeyName(key ed25519.PrivateKey) string {
	return base64.RawURLEncoding.EncodeToString(PublicOf(key))[:8]
}

// Doc is the next set with an active key, as change leaves it.
func (c *Chain) Doc(active ed25519.PrivateKey, change func(*trust.VerifierSetDoc)) trust.VerifierSetDoc {
	d := trust.VerifierSetDoc{
		V: 1, Env: c.F.ID.Env, Version: int64(len(c.Docs) + 1), IssuedAt: time.Now().UTC(), ExpiresAt: time.Now().UTC().Add(time.Hour),
		Keys: []trust.VerifierKey{{KeyID: KeyName(active), State: trust.KeyActive, Public: PublicOf(active)}},
	}
	if active.Equal(c.F.Signer) {
		d.Keys[0].KeyID = "k1"
	}
	if n := len(c.Hash); n > 0 {
		d.PrevHash = c.Hash[n-1]
	}
	if change != nil {
		change(&d)
	}
	return d
}

// Sign signs a set with the root and the active key of the newest.
func (c *Chain) Sign(d trust.VerifierSetDoc) json.RawMessage {
	by := c.F.Signer
	if n := len(c.Keys); n > 0 {
		by = c.Keys[n-1]
	}
	return SignWith(c.T, trust.VerifierSetPayloadType, d, EdSigner{Key: c.F.Root, ID: ""}, EdSigner{Key: by, ID: ""})
}

// Add puts a set on the chain.
func (c *Chain) Add(active ed25519.PrivateKey, change func(*trust.VerifierSetDoc)) {
	c.T.Helper()
	d := c.Doc(active, change)
	c.push(active, d, c.Sign(d))
}

// AddWith is Add with another root key.
func (c *Chain) AddWith(root, active ed25519.PrivateKey, change func(*trust.VerifierSetDoc)) {
	c.T.Helper()
	d := c.Doc(active, change)
	c.push(active, d, SignWith(c.T, trust.VerifierSetPayloadType, d, EdSigner{Key: root, ID: ""}, EdSigner{Key: c.Keys[len(c.Keys)-1], ID: ""}))
}

func (c *Chain) push(active ed25519.PrivateKey, d trust.VerifierSetDoc, document json.RawMessage) {
	body, err := json.Marshal(d)
	require.NoError(c.T, err)
	c.Keys, c.Docs = append(c.Keys, active), append(c.Docs, document)
	c.Set, c.Hash = append(c.Set, d), append(c.Hash, schema.SHA256Hex(body))
}

func (c *Chain) Floor(version int) trust.VerifierSetRef {
	return trust.VerifierSetRef{Version: int64(version), Hash: c.Hash[version-1]}
}

func (c *Chain) name(version int) string { return c.Floor(version).String() }

// Source hands the chain's sets out.
func (c *Chain) Source(_ context.Context, after int64) (trust.VerifierSets, error) {
	return trust.VerifierSets{Sets: c.Docs[min(int(after), len(c.Docs)):]}, nil
}

func (c *Chain) Bundle(floor int) trust.TaskTrust {
	t := c.F.Trust()
	if floor > 0 {
		t.Floor = c.Floor(floor)
	}
	return t
}
