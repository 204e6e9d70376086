package server

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// holder is an agent with a recovery key: the state that it keeps on disk.
type holder struct {
	machine
	recovery ed25519.PrivateKey
	answer   wire.EnrollResponse // of the identity in use
}

func newRecoveryKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(tb, err)
	return key
}

func sign(key ed25519.PrivateKey, statement []byte) string {
	return base64.StdEncoding.EncodeToString(ed25519.Sign(key, statement))
}

// enrollment returns the holder's request for its first certificate with key.
func (h *holder) enrollment(tb testing.TB, key *ecdsa.PrivateKey) wire.EnrollRequest {
	tb.Helper()
	public := h.recovery.Public().(ed25519.PublicKey) //nolint:forcetypeassert // documented by crypto/ed25519
	req := wire.EnrollRequest{Token: h.bundle.EnrollmentToken, CSR: newCSR(tb, key, nil), AgentVersion: "v1",
		RecoveryKey: base64.StdEncoding.EncodeToString(public)}
	req.Signature = sign(h.recovery, trust.EnrollStatement(h.id, req.Token, req.CSR, public))
	return req
}

func (h *holder) rescue(tb testing.TB, key *ecdsa.PrivateKey) wire.RecoverRequest {
	tb.Helper()
	req := wire.RecoverRequest{Token: h.answer.RecoveryToken, CSR: newCSR(tb, key, nil), Incarnation: h.answer.Incarnation,
		Sequence: h.answer.Sequence, AgentVersion: "v1"}
	req.Signature = sign(h.recovery, trust.RecoverStatement(h.id, req.Incarnation, req.Sequence, req.Token, req.CSR))
	return req
}

func (h *holder) renewal(tb testing.TB, key *ecdsa.PrivateKey) wire.RenewRequest {
	tb.Helper()
	return wire.RenewRequest{CSR: newCSR(tb, key, nil), Sequence: h.answer.Sequence, AgentVersion: "v1"}
}

// take makes the identity of the answer the one in use.
func (h *holder) take(tb testing.TB, a reply, key *ecdsa.PrivateKey) {
	tb.Helper()
	h.cert = certificate(tb, a, key)
	a.into(tb, &h.answer)
}

// post calls the node API with the holder's certificate, when it has one.
func (r *replica) post(h *holder, path string, body any) reply {
	r.tb.Helper()
	return r.call(r.client(h.cert), http.MethodPost, r.url(h.machine, path), body)
}

// bare calls the node API without a certificate.
func (r *replica) bare(h *holder, path string, body any) reply {
	r.tb.Helper()
	return r.call(r.client(nil), http.MethodPost, r.url(h.machine, path), body)
}

// holder returns an active node with a recovery key whose agent has polled.
func (r *replica) holder() *holder {
	r.tb.Helper()
	h := &holder{machine: r.bundle(), recovery: newRecoveryKey(r.tb)}
	key := newKey(r.tb)
	h.take(r.tb, r.bare(h, "/enroll", h.enrollment(r.tb, key)), key)
	require.Equal(r.tb, http.StatusNoContent, r.wait(h.machine, "0s").status)
	r.finish(h.id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive})
	return h
}

// works checks that the identity in use is accepted.
func (r *replica) works(h *holder) {
	r.tb.Helper()
	a := r.wait(h.machine, "0s")
	require.Equal(r.tb, http.StatusNoContent, a.status, string(a.body))
}

func (r *replica) refusal(a reply, kind schema.Kind, reason string) {
	r.tb.Helper()
	e := a.refusal(r.tb)
	require.Equal(r.tb, string(kind)+" "+reason, string(e.Code)+" "+e.Reason, e.Message)
	require.Equal(r.tb, kind.Info().HTTP, a.status)
}
