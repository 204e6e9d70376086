package server

import (
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// A node keeps a signed checkpoint. The owner of the database then removes it with the
// events that it covers, so that every chain fits. The node's next poll raises a fault.
func TestNodesNoticeACutAuditTrail(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	publish(t, databaseURL, p.vault)
	p.start()
	p.becomes(http.StatusOK, "ok")
	base, agent := p.enrolled(databaseURL)
	poll := func(checkpoint string) reply { return pollWith(t, base, agent, checkpoint) }
	signed := p.checkpoint(databaseURL)
	harness.Eventually(t, "the checkpoint in the response to a poll", func() bool {
		return poll("").header.Get(wire.HeaderAuditCheckpoint) == signed.String()
	})
	poll(signed.String())
	poll(strings.Repeat("x", audit.MaxCheckpointText))
	stuck := func() string { return string(p.ask(http.MethodGet, "/stuck", nil).body) }
	require.NotContains(t, stuck(), "audit-trail")

	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `ALTER TABLE audit_checkpoints DISABLE TRIGGER USER; ALTER TABLE audit_events DISABLE TRIGGER USER;
		ALTER TABLE audit_heads DISABLE TRIGGER USER; DELETE FROM audit_checkpoints; DELETE FROM audit_checkpoint_heads;
		DELETE FROM audit_events WHERE stream = 'system'; DELETE FROM audit_heads WHERE stream = 'system'`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	harness.Eventually(t, "a fault", func() bool {
		poll(signed.String())
		return strings.Contains(stuck(), `"checkpoint_missing"`)
	})
	a := p.ask(http.MethodPost, "/audit/accept-gap", `{"reason": "a test"}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	require.NotContains(t, stuck(), "audit-trail")
}

// A checkpoint that no key signed is a fault, and the response to the node's poll replaces
// it, whatever its number.
func TestForgedCheckpointIsReplaced(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	p := newProcess(t, databaseURL)
	publish(t, databaseURL, p.vault)
	p.start()
	p.becomes(http.StatusOK, "ok")
	base, agent := p.enrolled(databaseURL)
	signed := p.checkpoint(databaseURL)
	forged, foreign := signed, signed
	forged.Number, foreign.Env = math.MaxInt64, "other"
	harness.Eventually(t, "the replacement", func() bool {
		a := pollWith(t, base, agent, forged.String())
		return a.header.Get(wire.HeaderReplaceCheckpoint) == "true" && a.header.Get(wire.HeaderAuditCheckpoint) == signed.String()
	})
	stuck := func() string { return string(p.ask(http.MethodGet, "/stuck", nil).body) }
	require.Contains(t, stuck(), `"checkpoint_unverified"`)
	a := p.ask(http.MethodPost, "/audit/accept-gap", `{"reason": "a test"}`)
	require.Equal(t, http.StatusOK, a.status, string(a.body))
	for _, other := range []string{signed.String(), foreign.String()} {
		require.Empty(t, pollWith(t, base, agent, other).header.Get(wire.HeaderReplaceCheckpoint))
	}
	require.NotContains(t, stuck(), "audit-trail")
}

// pollWith polls with a checkpoint and returns the response, which has no task.
func pollWith(t *testing.T, base string, agent *http.Client, checkpoint string) (a reply) {
	t.Helper()
	harness.Eventually(t, "a poll below the limits of a node", func() bool {
		q := pollRequest(0)
		q.AuditCheckpoint = checkpoint
		var err error
		a, err = send(t.Context(), agent, http.MethodPost, base+"/tasks/wait", q)
		require.NoError(t, err)
		return a.status != http.StatusTooManyRequests
	})
	require.Equal(t, http.StatusNoContent, a.status, string(a.body))
	return a
}

// enrolled enrolls a node and returns the URL of its API and its client.
func (p *process) enrolled(databaseURL string) (base string, agent *http.Client) {
	p.t.Helper()
	a := p.ask(http.MethodPost, "/nodes", `{"host":"gpu-1","sku":"cpu-dev","region_code":"r"}`)
	require.Equal(p.t, http.StatusCreated, a.status, string(a.body))
	var node wire.NodeView
	a.into(p.t, &node)
	s, err := store.Open(p.t.Context(), store.Config{URL: databaseURL})
	require.NoError(p.t, err)
	defer s.Close()
	text, id, hash := trust.NewToken()
	require.NoError(p.t, s.Identities.IssueToken(p.t.Context(), trust.MintedToken{NodeID: node.ID, TokenID: id, Hash: hash,
		Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(time.Hour)}, audit.Subject{Actor: "test"}))
	base = p.node + "/internal/v1/nodes/" + node.ID
	key := newKey(p.t)
	a, err = send(p.t.Context(), p.client(), http.MethodPost, base+"/enroll", wire.EnrollRequest{Token: text, CSR: newCSR(p.t, key, nil)})
	require.NoError(p.t, err)
	return base, httpClient(p.t, p.serverCA(), certificate(p.t, a, key))
}

// checkpoint stores a checkpoint that Vault signed for the worker.
func (p *process) checkpoint(databaseURL string) audit.Checkpoint {
	p.t.Helper()
	dir := filepath.Dir(p.vars["GPUAAS_VAULT_ROLE_ID_FILE"])
	worker, err := vault.Login(p.t.Context(), vault.Config{Address: p.vault.Address, Env: testEnv,
		RoleIDFile: filepath.Join(dir, "worker-role-id"), SecretIDFile: filepath.Join(dir, "worker-secret-id")})
	require.NoError(p.t, err)
	defer worker.Close()
	s, err := store.Open(p.t.Context(), store.Config{URL: pgtest.As(databaseURL, store.RoleWorker)})
	require.NoError(p.t, err)
	defer s.Close()
	body, err := s.Checkpoints.Next(p.t.Context())
	require.NoError(p.t, err)
	_, hash, err := body.Encode()
	require.NoError(p.t, err)
	signed, err := worker.SignCheckpoint(p.t.Context(), audit.Checkpoint{Number: body.Number, Hash: hash, At: time.Now().UTC().Truncate(time.Second)})
	require.NoError(p.t, err)
	stored, err := s.Checkpoints.Put(p.t.Context(), body, signed)
	require.NoError(p.t, err)
	require.True(p.t, stored)
	return signed
}
