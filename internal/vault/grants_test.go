package vault

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/harness"
)

// grants creates a lease key and waits for its delegation.
func grants(t *testing.T, c *Client) *Grants {
	t.Helper()
	g, err := c.Grants(func(bool) {})
	require.NoError(t, err)
	untilReady(t, g)
	return g
}

func untilReady(t *testing.T, g *Grants) {
	t.Helper()
	for {
		changed, err := g.Ready()
		if err == nil {
			return
		}
		harness.Receive(t, "a delegation", changed)
	}
}

// leaseKey verifies a delegation as a node does and returns it with its key.
func leaseKey(t *testing.T, envelope json.RawMessage, set trust.VerifierKeys) (trust.LeaseKey, trust.VerifierKey) {
	t.Helper()
	body, err := verifyAs(t, trust.LeaseKeyPayloadType, envelope, accepted(set)...)
	require.NoError(t, err)
	var doc trust.LeaseKey
	require.NoError(t, schema.DecodeStrict(body, trust.MaxDocumentBytes, &doc))
	return doc, trust.VerifierKey{KeyID: doc.KeyID, Public: doc.Public}
}

func TestGrants(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	g := grants(t, c)
	signs := b.calls.of("sign_lease_key")
	grant := task.Grant{V: 1, Env: testEnv, NodeID: schema.NewID(), Nonce: "n", TaskID: schema.NewID(), LeaseEpoch: 3}
	b.Seal(t)
	envelope, key, err := g.Sign(grant)
	require.NoError(t, err, "no call to Vault")
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
	require.NoError(t, schema.DecodeStrict(body, trust.MaxDocumentBytes, &got))
	require.Equal(t, grant, got)

	t.Run("each replica has its own key", func(t *testing.T) {
		_, other, err := grants(t, b.login(t, "api")).Sign(grant)
		require.NoError(t, err)
		otherDoc, _ := leaseKey(t, other, trusted.Keys)
		require.NotEqual(t, doc.KeyID, otherDoc.KeyID)
	})
	t.Run("an expired delegation", func(t *testing.T) {
		b.Seal(t) // otherwise it is replaced at once
		g.mu.Lock()
		g.now = func() time.Time { return doc.NotAfter }
		g.mu.Unlock()
		_, _, err := g.Sign(grant)
		requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")
		_, err = g.Ready()
		requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")
	})
}

// A delegation that was made while this machine's clock was wrong is replaced at once when the
// clock is right again, whether its time is over then or has not begun.
func TestGrantsAfterAClockCorrection(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"the clock was ahead": 48 * time.Hour, "the clock was behind": -48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := prepared(t)
			c := b.login(t, "api")
			g := grants(t, c)
			runs := func(now func() time.Time) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.now = now
			}
			runs(func() time.Time { return time.Now().Add(wrong) })
			require.NoError(t, g.delegate(t.Context()))
			runs(time.Now)
			changed, err := g.Ready()
			requireKind(t, err, schema.KindServiceUnavailable, ReasonNoLeaseKey)
			harness.Receive(t, "a delegation", changed)
			_, err = g.Ready()
			require.NoError(t, err)
		})
	}
}

// Grants recover from a failed first delegation without a restart.
func TestGrantsRetryDelegation(t *testing.T) {
	b := prepared(t)
	c := b.loginWith(t, b.config("api"))
	observed := make(chan bool, 64)
	g, err := c.Grants(func(good bool) { observed <- good })
	require.NoError(t, err)
	require.False(t, <-observed, "no set yet")
	_, _, err = g.Sign(task.Grant{})
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)
	changed, err := g.Ready()
	requireKind(t, err, schema.KindServiceUnavailable, ReasonNoSet)

	b.write(t, "sys/policies/acl/gpuaas-api", map[string]any{"policy": `path "transit/keys/*" { capabilities = ["read"] }`})
	require.NoError(t, c.Follow(t.Context(), b.set))
	require.False(t, <-observed, "Vault denies it")
	require.NoError(t, b.install.setup(t))
	for !<-observed {
	}
	<-changed
	_, err = g.Ready()
	require.NoError(t, err)
	require.Contains(t, b.log.String(), "no task is dispatched")
}

// A published set with another active key triggers a new delegation at once. A
// delegation by a key that the set no longer accepts is not used.
func TestGrantsFollowTheSet(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	g := grants(t, c)
	b.write(t, "transit/keys/task-test/rotate", nil)
	changed, err := g.Ready()
	require.NoError(t, err)
	next := b.moved(t, b.set)
	require.NoError(t, c.Follow(t.Context(), next))
	_, _, err = g.Sign(task.Grant{})
	require.NoError(t, err, "the old key is in grace")
	<-changed
	g.mu.Lock()
	require.Equal(t, "task-test.v2", g.held.by, "one delegation at the start, one after the change")
	g.held.by = "task-test.v0"
	g.mu.Unlock()
	_, err = g.Ready()
	requireKind(t, err, schema.KindServiceUnavailable, "no_lease_key")

	wrong := next
	wrong.Hash = schema.SHA256Hex(nil)
	require.Error(t, c.Follow(t.Context(), wrong))
	_, err = g.Ready()
	requireKind(t, err, schema.KindInternal, ReasonBadSet)
}
