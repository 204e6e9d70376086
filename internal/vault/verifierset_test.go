package vault

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// A set has two signatures over the same bytes, by the root and the task key.
func TestVerifierSetSignatures(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	trusted, err := c.TaskTrust(t.Context())
	require.NoError(t, err)
	var e dsse.Envelope
	require.NoError(t, json.Unmarshal(b.set.Document, &e))
	require.Len(t, e.Signatures, 2)
	require.Equal(t, "set-root-test.v1", e.Signatures[0].KeyID)
	require.Equal(t, "task-test.v1", e.Signatures[1].KeyID)
	for _, key := range []trust.VerifierKey{trusted.Roots[0], trusted.Keys[0]} {
		body, err := verifyAs(t, trust.VerifierSetPayloadType, b.set.Document, key)
		require.NoError(t, err)
		require.Equal(t, b.set.Hash, schema.SHA256Hex(body))
		var doc trust.VerifierSetDoc
		require.NoError(t, schema.DecodeStrict(body, trust.MaxDocumentBytes, &doc))
		require.Equal(t, int64(1), doc.Version)
		require.Empty(t, doc.PrevHash)
		require.WithinDuration(t, time.Now().Add(VerifierSetLifetime), doc.ExpiresAt, time.Hour)
	}
}

func TestVerifierSetRenewal(t *testing.T) {
	b := prepared(t)
	s := b.sets(t)
	_, due, err := s.Renewal(t.Context(), b.set, time.Now().Add(VerifierSetLifetime/2-time.Hour))
	require.NoError(t, err)
	require.False(t, due, "more than half is left")
	late := time.Now().Add(VerifierSetLifetime/2 + time.Hour)
	next, due, err := s.Renewal(t.Context(), b.set, late)
	require.NoError(t, err)
	require.True(t, due)
	require.Equal(t, int64(2), next.Version)
	require.Equal(t, b.set.Hash, next.PrevHash)
	first, err := checkSet(t.Context(), s, testEnv, b.set)
	require.NoError(t, err)
	second, err := checkSet(t.Context(), s, testEnv, next)
	require.NoError(t, err)
	require.Equal(t, first.set.Doc.Keys, second.set.Doc.Keys)
	require.Equal(t, late.Add(VerifierSetLifetime).UTC(), second.set.Doc.ExpiresAt.UTC())
}

// A set from the database needs the root key's signature: a forged one is neither
// followed nor renewed.
func TestForgedVerifierSets(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "worker")
	signed, err := c.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
	resign := func(change func(*trust.VerifierSetDoc), keys ...string) trust.StoredSet {
		f, err := checkSet(t.Context(), c, testEnv, b.set)
		require.NoError(t, err)
		doc := f.set.Doc
		change(&doc)
		body, err := json.Marshal(doc)
		require.NoError(t, err)
		var signers []dsse.Signer
		for _, name := range keys {
			key := map[string]keyVersion{"task": f.key, "root": f.root}[name]
			signers = append(signers, signer{b.sets(t), "", key})
		}
		envelope, err := seal(t.Context(), trust.VerifierSetPayloadType, body, signers...)
		require.NoError(t, err)
		return trust.StoredSet{Version: doc.Version, Epoch: doc.Epoch, Hash: schema.SHA256Hex(body), PrevHash: doc.PrevHash, Document: envelope}
	}
	other := make([]byte, 32)
	wrongHash, wrongVersion, rubbish := b.set, b.set, b.set
	wrongHash.Hash = schema.SHA256Hex(nil)
	wrongVersion.Version++
	rubbish.Document = []byte(`{"payload":"e30=","payloadType":"x","signatures":[],"signatures":[]}`)
	for name, row := range map[string]struct {
		set    trust.StoredSet
		reason string
	}{
		"signed by the task key alone": {resign(func(*trust.VerifierSetDoc) {}, "task"), ReasonBadSet},
		"of another environment":       {resign(func(d *trust.VerifierSetDoc) { d.Env = "prod" }, "root", "task"), ReasonBadSet},
		"without an active key": {resign(func(d *trust.VerifierSetDoc) {
			d.Keys = []trust.VerifierKey{{KeyID: "task-test.v1", Public: d.Keys[0].Public, State: trust.KeyGrace}}
		}, "root", "task"), ReasonBadSet},
		"a key that is not Vault's": {resign(func(d *trust.VerifierSetDoc) {
			d.Keys = []trust.VerifierKey{{KeyID: "task-test.v1", Public: other, State: trust.KeyActive}}
		}, "root", "task"), ReasonKeyMismatch},
		"a version that Vault has not": {resign(func(d *trust.VerifierSetDoc) {
			d.Keys = []trust.VerifierKey{{KeyID: "task-test.v7", Public: other, State: trust.KeyActive}}
		}, "root", "task"), ReasonKeyMismatch},
		"of another hash":    {wrongHash, ReasonBadSet},
		"of another version": {wrongVersion, ReasonBadSet},
		"no envelope":        {rubbish, ReasonBadSet},
	} {
		t.Run(name, func(t *testing.T) {
			requireKind(t, c.Follow(t.Context(), row.set), schema.KindInternal, row.reason)
			_, err := c.Sign(t.Context(), []byte("{}"))
			requireKind(t, err, schema.KindInternal, row.reason)
			_, _, err = b.sets(t).Renewal(t.Context(), row.set, time.Now().Add(VerifierSetLifetime))
			requireKind(t, err, schema.KindInternal, row.reason)
			require.NoError(t, c.Follow(t.Context(), b.set), "a valid set resumes signing")
			again, err := c.Sign(t.Context(), []byte("{}"))
			require.NoError(t, err)
			require.Equal(t, signed, again)
		})
	}
}

// If Vault does not respond or denies the call, a new client fails and creates no
// key; a running client keeps its set.
func TestFollowWhileVaultUnavailable(t *testing.T) {
	b := prepared(t)
	running := b.login(t, "worker")
	target, err := url.Parse(b.Address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	for name, answer := range map[string]http.HandlerFunc{
		"403":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"503":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"timeout": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		for _, key := range []string{"task-test", "set-root-test"} {
			t.Run(name+"/"+key, func(t *testing.T) {
				wrote := make(chan string, 16)
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/v1/transit/keys/"+key {
						if r.Method != http.MethodGet {
							wrote <- r.Method
						}
						answer(w, r)
						return
					}
					proxy.ServeHTTP(w, r)
				}))
				t.Cleanup(server.Close)
				config := b.config("worker")
				config.Address = server.URL
				c := b.loginWith(t, config)
				ctx := t.Context()
				if name == "timeout" {
					brief, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					ctx = brief
				}
				err := c.Follow(ctx, b.set)
				require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err), "%v", err)
				_, err = c.Sign(t.Context(), []byte("{}"))
				requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)
				require.Empty(t, wrote)
			})
		}
	}
	b.Seal(t)
	requireKind(t, running.Follow(t.Context(), b.set), schema.KindServiceUnavailable, ReasonSealed)
	_, err = running.TaskTrust(t.Context())
	require.NoError(t, err, "the checked set stays in use")
	b.Unseal(t)
	_, err = running.Sign(t.Context(), []byte("{}"))
	require.NoError(t, err)
}

func TestVersionOf(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]int{
		"task-x.v1": 1, "task-x.v12": 12, "task-x.v0": 0, "task-x.v-1": 0, "task-x.v01": 0, "task-x.v": 0,
		"task-x.v+1": 0, "task-y.v1": 0, "": 0,
	} {
		got, ok := versionOf("task-x", id)
		require.Equal(t, want > 0, ok, id)
		if ok {
			require.Equal(t, want, got, id)
		}
	}
}

// The root key that signs next is one that the set itself trusts, whatever the order of the
// signatures and whichever were removed.
func TestSignedBy(t *testing.T) {
	t.Parallel()
	trusts := func(ids ...string) (set trust.VerifierSet) {
		for _, id := range ids {
			set.Doc.Roots = append(set.Doc.Roots, trust.VerifierKey{KeyID: id})
		}
		return set
	}
	for name, c := range map[string]struct {
		set     trust.VerifierSet
		signers []string
		id      string
		ok      bool
	}{
		"no root named": {trusts(), []string{"v1"}, "v1", true},
		"in order":      {trusts("v1"), []string{"v1", "v2"}, "v1", true},
		"reordered":     {trusts("v1"), []string{"v2", "v1"}, "v1", true},
		"removed":       {trusts("v1"), []string{"v2"}, "", false},
	} {
		id, ok := signedBy(c.set, c.signers)
		require.Equal(t, c.id, id, name)
		require.Equal(t, c.ok, ok, name)
	}
}
