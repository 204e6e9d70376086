package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestLostConfirmation: the answer to the call that promotes a new certificate is
// lost. The node continues with the new certificate, because the server has retired
// the previous one and would soon treat its use as a copied identity.
func TestLostConfirmation(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	previous := r.serial()
	r.due()
	r.wire.lose = func(_ int, call string) string {
		if call == "GET /tasks/wait" {
			return "answer"
		}
		return ""
	}
	out := r.step()
	require.Equal(t, identity.ActRenew, out.Action)
	require.NoError(t, out.poll)
	require.NotEqual(t, previous, r.serial())
	require.True(t, r.book.Accepts(r.serial()))
	r.pass(2 * trust.InFlight)
	require.NoError(t, r.step().poll)
	r.whole("lost proof")
}

// TestRecoverWithPreviousToken: the newest identity was never used and the
// server no longer has it. The recovery token of the previous one is valid.
func TestRecoverWithPreviousToken(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.wire.lose = func(_ int, call string) string {
		if strings.HasSuffix(call, "/wait") {
			return "request"
		}
		return ""
	}
	r.step()
	r.wire.lose = nil
	r.book.Mu.Lock()
	r.book.Void[r.book.Pending.Facts.Serial], r.book.Pending = true, nil
	r.book.Mu.Unlock()
	r.pass(2 * trust.CertTTL)
	r.converge()
	require.Equal(t, trust.IssuedByRecover, r.lastVia())
	require.Equal(t, 2, r.f.Count("recover"))
	r.whole("previous token")
}
