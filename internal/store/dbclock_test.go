package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// ahead returns a store whose database's clock is ahead of this machine's.
func (e *env) ahead(by time.Duration) *store.Store {
	e.t.Helper()
	e.exec("CREATE SCHEMA clock; GRANT USAGE ON SCHEMA clock TO PUBLIC")
	e.exec(fmt.Sprintf("CREATE FUNCTION clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT pg_catalog.now() + interval '%d seconds' $$",
		int(by.Seconds())))
	e.exec("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = clock, pg_catalog, public', current_database()); END $$")
	s, err := store.Open(e.t.Context(), store.Config{URL: restricted(e.t, e.url), MaxConns: 2})
	require.NoError(e.t, err)
	e.t.Cleanup(s.Close)
	return s
}

// The lives of tokens, the age of an alarm and that of a state count by the database's clock: that
// of the process may be wrong.
func TestAgesAndLivesAreByTheDatabasesClock(t *testing.T) {
	const ahead = 48 * time.Hour
	e := setup(t)
	m := e.machine()
	alarmed := e.inState(lifecycle.NodeActive)
	e.exec("UPDATE nodes SET identity_alarm = $2, identity_alarm_at = now() - interval '1 minute' WHERE node_id = $1", alarmed.ID, trust.AlarmToken)
	shown, err := e.Node(t.Context(), alarmed.ID)
	require.NoError(t, err)
	require.NotNil(t, shown.IdentityAlarm)
	s := e.ahead(ahead)
	now := time.Now().Add(ahead)

	expiry, err := s.Identities.TokenExpiry(t.Context())
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(trust.TokenTTL), expiry, time.Minute)
	won, err := s.Identities.ClaimRecovery(t.Context(), m.recoveryClaim(m.k(2)))
	require.NoError(t, err)
	require.WithinDuration(t, now, won.Now, time.Minute)
	id := schema.NewID()
	_, err = s.Identities.StorePending(t.Context(), nodeapi.NewIdentity{NodeID: m.caller.NodeID, Incarnation: 1, Via: trust.IssuedByRecover,
		TokenID: won.TokenID, Cert: trust.CertFacts{Serial: "s", Issuer: "i", SPKI: m.k(2), NotBefore: now, NotAfter: now.Add(time.Hour)},
		Recovery: trust.MintedToken{TokenID: id, Hash: make([]byte, 32)}})
	require.NoError(t, err)
	require.InDelta(t, trust.RecoveryTokenTTL.Seconds(), float64(e.number(
		"SELECT extract(epoch FROM expires_at - pg_catalog.now() - make_interval(secs => $2))::bigint FROM enrollment_tokens WHERE token_id = $1",
		id, ahead.Seconds())), 60)

	shown, err = s.Admin.Node(t.Context(), alarmed.ID)
	require.NoError(t, err)
	require.Nil(t, shown.IdentityAlarm, "two days old")
	counts, err := s.Inventory.NodeCounts(t.Context())
	require.NoError(t, err)
	require.InDelta(t, ahead.Seconds(), counts[0].OldestSeconds, 60)
}
