package store_test

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// machine is an enrolled node with what its agent has: the identity it uses
// and the recovery token that goes with it.
type machine struct {
	e        *env
	caller   nodeapi.Caller
	id       trust.Identity
	cert     trust.CertFacts
	sequence int64
	recovery trust.MintedToken
}

// machine enrolls a new node up to active.
func (e *env) machine() *machine {
	e.t.Helper()
	n := e.register()
	claim := e.claim(n.ID, lifecycle.ActionEnroll)
	tokenID, hash := e.token(n.ID)
	m := &machine{e: e, caller: nodeapi.Caller{NodeID: n.ID, Incarnation: 1, Host: n.Host}}
	m.enroll(tokenID, hash, key(n.ID, 1))
	require.NoError(e.t, e.Finish(e.t.Context(), claim.Fence, activities.Finish{Status: lifecycle.OperationCompleted,
		Node: lifecycle.NodeActive, Outcome: "enrolled"}))
	m.use()
	return m
}

// enroll claims the token and uses the identity, up to the first poll.
func (m *machine) enroll(tokenID string, hash []byte, spki string) {
	m.e.t.Helper()
	ctx := m.e.t.Context()
	c := tokenClaim(m.caller.NodeID, tokenID, hash, spki)
	c.RecoveryKey = recoveryKey
	won, err := m.e.ClaimToken(ctx, c)
	require.NoError(m.e.t, err)
	m.caller.Incarnation = won.Incarnation
	m.adopt(m.issue(trust.IssuedByEnroll, tokenID, spki))
	m.use()
	require.NoError(m.e.t, m.e.RecordPoll(ctx, m.caller, wire.PollRequest{}))
}

// answer is what a node API answers with: an identity in the pending slot.
type answer struct {
	id       trust.Identity
	cert     trust.CertFacts
	sequence int64
	recovery trust.MintedToken
}

// issue stores a fresh certificate for the key, as the node API does after a
// claim.
func (m *machine) issue(via trust.IssueMethod, tokenID, spki string) answer {
	m.e.t.Helper()
	a, err := m.tryIssue(via, tokenID, spki)
	require.NoError(m.e.t, err)
	return a
}

func (m *machine) tryIssue(via trust.IssueMethod, tokenID, spki string) (a answer, err error) {
	a.id, a.cert = certificate(m.caller.NodeID, m.caller.Incarnation, spki)
	_, id, hash := trust.NewToken()
	a.recovery = trust.MintedToken{NodeID: m.caller.NodeID, TokenID: id, Hash: hash, Purpose: trust.PurposeRecover,
		ExpiresAt: time.Now().Add(trust.RecoveryTokenTTL)}
	a.sequence, err = m.e.StorePending(m.e.t.Context(), nodeapi.NewIdentity{NodeID: m.caller.NodeID,
		Incarnation: m.caller.Incarnation, Via: via, TokenID: tokenID, Cert: a.cert, Recovery: a.recovery, CorrelationID: "corr-2"})
	return a, err
}

// adopt makes the answer what the node holds.
func (m *machine) adopt(a answer) {
	m.id, m.cert, m.sequence, m.recovery = a.id, a.cert, a.sequence, a.recovery
}

// use makes a request with the identity, which must be good.
func (m *machine) use() {
	m.e.t.Helper()
	caller, err := m.e.Authenticate(m.e.t.Context(), m.id, m.cert)
	require.NoError(m.e.t, err)
	m.caller = caller
}

// refused makes a request with the identity, which must be refused.
func (m *machine) refused(a answer, reason string) {
	m.e.t.Helper()
	_, err := m.e.Authenticate(m.e.t.Context(), a.id, a.cert)
	requireKind(m.e.t, err, schema.KindInvalidNodeIdentity, reason)
}

func (m *machine) held() answer { return answer{m.id, m.cert, m.sequence, m.recovery} }

// renew asks for a renewal with the held identity.
func (m *machine) renew(spki string) error {
	_, err := m.e.ClaimRenewal(m.e.t.Context(), nodeapi.RenewClaim{Caller: m.caller, SPKI: spki, Sequence: m.sequence,
		CorrelationID: "corr-3"})
	return err
}

// renewed takes a renewal up to its answer.
func (m *machine) renewed(spki string) answer {
	m.e.t.Helper()
	require.NoError(m.e.t, m.renew(spki))
	return m.issue(trust.IssuedByRenew, "", spki)
}

func (m *machine) recoveryClaim(spki string) nodeapi.RecoveryClaim {
	return nodeapi.RecoveryClaim{TokenClaim: nodeapi.TokenClaim{NodeID: m.caller.NodeID, TokenID: m.recovery.TokenID, Hash: m.recovery.Hash,
		SPKI: spki, CorrelationID: "corr-4", AgentVersion: "v1", RemoteAddr: "192.0.2.7:999"}, Incarnation: m.caller.Incarnation, Sequence: m.sequence}
}

// recover asks for a recovery with the held token.
func (m *machine) recover(spki string) error {
	_, err := m.e.ClaimRecovery(m.e.t.Context(), m.recoveryClaim(spki))
	return err
}

// recovered takes a recovery up to its answer.
func (m *machine) recovered(spki string) answer {
	m.e.t.Helper()
	require.NoError(m.e.t, m.recover(spki))
	return m.issue(trust.IssuedByRecover, m.recovery.TokenID, spki)
}

// k is the hash of the node's n-th key.
func (m *machine) k(n int) string { return key(m.caller.NodeID, n) }

// pass lets the in-flight window of every replaced certificate end.
func (e *env) pass() {
	e.exec("UPDATE node_certificates SET retired_at = retired_at - make_interval(secs => $1) WHERE retired_at IS NOT NULL",
		trust.InFlight.Seconds()+1)
}

func (e *env) locked(nodeID string) bool {
	return e.number("SELECT count(*) FROM nodes WHERE node_id = $1 AND identity_locked_at IS NOT NULL", nodeID) == 1
}

// storePending stores a certificate that the token paid for.
func (e *env) storePending(nodeID string, incarnation int64, tokenID string, cert trust.CertFacts) error {
	_, err := e.StorePending(e.t.Context(), nodeapi.NewIdentity{NodeID: nodeID, Incarnation: incarnation, Via: trust.IssuedByEnroll,
		TokenID: tokenID, Cert: cert, CorrelationID: "corr-2"})
	return err
}

// mint makes a token of a purpose without storing it.
func mint(nodeID string, p trust.TokenPurpose) trust.MintedToken {
	_, id, hash := trust.NewToken()
	return trust.MintedToken{NodeID: nodeID, TokenID: id, Hash: hash, Purpose: p, ExpiresAt: time.Now().Add(trust.TokenTTL)}
}
