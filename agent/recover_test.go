package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestRecoverReplacedEnrollment: a late copy of the enrollment request replaced the
// certificate that the node stored, and the node was off until that one expired. Its
// first request is a recovery, whose token was revoked with the certificate. The enrollment is made again.
func TestRecoverReplacedEnrollment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.wire.lose = func(int, string) string { return "copied" }
	require.True(t, r.boot())
	out := r.agent.ReconcileIdentity(t.Context())
	require.Equal(t, identity.ActEnroll, out.Action)
	require.NoError(t, out.Err)
	r.wire.lose = nil
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByEnroll}, r.book.Via)
	require.False(t, r.book.Accepts(r.serial()), "the copy replaced it")

	r.pass(trust.CertTTL + time.Hour)
	require.True(t, r.boot())
	r.converge()
	require.Positive(t, r.f.Count("recover"))
	require.Equal(t, 1, r.f.Count("wait"), "no poll reported it before")
	require.Equal(t, []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByEnroll, trust.IssuedByEnroll}, r.book.Via)
	r.whole("enrolled again")
}
