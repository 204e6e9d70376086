package vault

import (
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// grants starts a lease key and waits until it is good.
func grants(t *testing.T, c *Client) *Grants {
	t.Helper()
	g, err := c.Grants(nil)
	require.NoError(t, err)
	untilGood(t, g)
	return g
}

func untilGood(t *testing.T, g *Grants) {
	t.Helper()
	for {
		mended, err := g.Ready()
		if err == nil {
			return
		}
		select {
		case <-mended:
		case <-time.After(30 * time.Second):
			require.FailNow(t, "no delegation came", "%v", err)
		}
	}
}

// leaseKey checks a delegation as a node does and returns it with its key.
func leaseKey(t *testing.T, envelope json.RawMessage, set trust.VerifierSet) (trust.LeaseKey, trust.VerifierKey) {
	t.Helper()
	body, err := verifyAs(t, trust.LeaseKeyPayloadType, envelope, set.Accepts()...)
	require.NoError(t, err)
	var doc trust.LeaseKey
	require.NoError(t, schema.DecodeStrict(body, maxSetBytes, &doc))
	public, err := base64.StdEncoding.DecodeString(doc.Public)
	require.NoError(t, err)
	return doc, trust.VerifierKey{KeyID: doc.KeyID, Public: public}
}

func TestGrants(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	g := grants(t, c)
	signs := b.calls.of("sign_lease_key")
	grant := task.Grant{V: 1, Env: testEnv, NodeID: schema.NewID(), Nonce: "n", TaskID: schema.NewID(), LeaseEpoch: 3}
	b.Seal(t)
	envelope, key, err := g.Sign(grant)
	require.NoError(t, err, "Vault is not asked")
	b.Unseal(t)
	require.Equal(t, 1, signs)

	trusted, err := c.TaskTrust(t.Context())
	require.NoError(t, err)
	doc, by := leaseKey(t, key, trusted.Keys)
	require.Equal(t, testEnv, doc.Env)
	require.Equal(t, trust.LeaseKeyLifetime, doc.NotAfter.Sub(doc.NotBefore)-backdate)
	body, err := verifyAs(t, trust.LeasePayloadType, envelope, by)
	require.NoError(t, err)
	var got task.Grant
	require.NoError(t, schema.DecodeStrict(body, maxSetBytes, &got))
	require.Equal(t, grant, got)

	t.Run("each replica has its own key", func(t *testing.T) {
		_, other, err := grants(t, b.login(t, "api")).Sign(grant)
		require.NoError(t, err)
		otherDoc, _ := leaseKey(t, other, trusted.Keys)
		require.NotEqual(t, doc.KeyID, otherDoc.KeyID)
	})
	t.Run("after its time it signs nothing", func(t *testing.T) {
		g.mu.Lock()
		g.now = func() time.Time { return doc.NotAfter }
		g.mu.Unlock()
		_, _, err := g.Sign(grant)
		requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")
		_, err = g.Ready()
		requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")
	})
}

// A start at which nothing can be delegated heals by itself, without a restart.
func TestGrantsAfterAFailedStart(t *testing.T) {
	b := prepared(t)
	c := b.loginWith(t, b.config("api"))
	told := make(chan bool, 64)
	g, err := c.Grants(func(good bool) { told <- good })
	require.NoError(t, err)
	require.False(t, <-told, "no set yet")
	_, _, err = g.Sign(task.Grant{})
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)
	mended, err := g.Ready()
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)

	b.write(t, "sys/policies/acl/gpuaas-api", map[string]any{"policy": `path "transit/keys/*" { capabilities = ["read"] }`})
	require.NoError(t, c.Follow(t.Context(), b.set))
	require.False(t, <-told, "Vault says no")
	require.NoError(t, Setup(t.Context(), b.admin, b.setup))
	for !<-told {
	}
	<-mended
	_, err = g.Ready()
	require.NoError(t, err)
	require.Contains(t, b.log.String(), "no task is handed over")
}

// A published set with another active key brings a new delegation at once; a key
// that the set no longer accepts delegates nothing.
func TestGrantsFollowTheSet(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	g := grants(t, c)
	b.write(t, "transit/keys/task-test/rotate", nil)
	mended, err := g.Ready()
	require.NoError(t, err)
	next := b.moved(t, b.set)
	require.NoError(t, c.Follow(t.Context(), next))
	_, _, err = g.Sign(task.Grant{})
	require.NoError(t, err, "the old key has its grace")
	<-mended
	g.mu.Lock()
	require.Equal(t, "task-test.v2", g.held.by, "one delegation at the start, one at the move")
	g.held.by = "task-test.v0"
	g.mu.Unlock()
	_, err = g.Ready()
	requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")

	wrong := next
	wrong.Hash = hashOf(nil)
	require.Error(t, c.Follow(t.Context(), wrong))
	_, err = g.Ready()
	requireKind(t, err, schema.KindInternal, ReasonBadSet)
}
