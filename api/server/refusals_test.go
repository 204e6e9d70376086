package server

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/resulttest"
)

// from returns an agent's HTTP client that sends from a loopback address.
func (r *replica) from(address string) *http.Client {
	r.tb.Helper()
	c := r.client(nil)
	transport := c.Transport.(resulttest.Transport).Transport
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	return c
}

// refusedRequests returns the rows of the system stream about refused requests, and the
// number of requests that they count.
func (r *replica) refusedRequests() (rows []audit.Event, requests int) {
	r.tb.Helper()
	a := r.ask(http.MethodGet, "/audit/streams/"+audit.SystemStream+"?limit=1000", nil)
	require.Equal(r.tb, http.StatusOK, a.status, string(a.body))
	var page wire.AuditStreamPage
	a.into(r.tb, &page)
	require.NoError(r.tb, audit.VerifyChain(nil, page.Events))
	for _, e := range page.Events {
		if e.Result == audit.Refused {
			n, err := strconv.Atoi(e.Detail["requests"])
			require.NoError(r.tb, err)
			rows, requests = append(rows, e), requests+n
		}
	}
	return rows, requests
}

// Requests with unknown tokens, from many addresses, write no row each: the first is
// audited at once, and the rest are counted. They lock no node and leave no refusal in a
// node's stream.
func TestUnknownTokensWriteFewRows(t *testing.T) {
	r := newCluster(t).replica()
	m := r.bundle()
	before := r.audit(m.id)
	enroll := func(from int) {
		text, _, _ := trust.NewToken()
		a := r.call(r.from(fmt.Sprintf("127.0.%d.1", from)), http.MethodPost, r.node+"/internal/v1/nodes/"+m.id+"/enroll",
			wire.EnrollRequest{Token: text, CSR: newCSR(t, newKey(t), nil)})
		r.refusal(a, schema.KindUnauthenticated, "token_unknown")
	}
	enroll(1)
	require.Eventually(t, func() bool {
		_, n := r.refusedRequests()
		return n == 1
	}, harness.Timeout, 20*time.Millisecond, "the first refusal is audited at once")
	for i := range 100 {
		enroll(i)
	}
	rows, _ := r.refusedRequests()
	require.Len(t, rows, 1)
	assert.Equal(t, "127.0.1.0/24", rows[0].Target)
	assert.Equal(t, audit.TokenRefused, rows[0].Action)
	assert.Equal(t, "token_unknown", rows[0].Reason)
	assert.Equal(t, before, r.audit(m.id))
	assert.InDelta(t, 101, r.series("gpuaas_unauthenticated_refusals_total"), 0)
	assert.Less(t, strings.Count(r.log.String(), `"level":"INFO","msg":"request","listener":"node"`), 60, "the log is sampled")
}

// A stolen recovery token without the node's recovery key, and requests that have the form of
// no request, are audited, too.
func TestHostileCertificateRequestsAreAudited(t *testing.T) {
	r := newCluster(t).replica()
	h := r.holder()
	key := newKey(t)
	stolen := h.rescue(t, key)
	stolen.Signature = sign(newRecoveryKey(t), trust.RecoverStatement(h.id, stolen.Incarnation, stolen.Sequence, stolen.Token, stolen.CSR))
	malformed, garbage := stolen, stolen
	malformed.Token, garbage.CSR = "gpuet_nonsense", "-----BEGIN NONSENSE-----"
	for _, req := range []wire.RecoverRequest{stolen, malformed, garbage} {
		require.GreaterOrEqual(t, r.bare(h, "/recover", req).status, 400)
		require.GreaterOrEqual(t, r.bare(h, "/enroll", wire.EnrollRequest{Token: req.Token, CSR: req.CSR, RecoveryKey: "x", Signature: "y"}).status, 400)
	}
	var rows []audit.Event
	require.Eventually(t, func() bool {
		var n int
		rows, n = r.refusedRequests()
		return n >= 1
	}, harness.Timeout, 20*time.Millisecond, "the first refusal is audited at once")
	require.Equal(t, audit.RecoveryRefused, rows[0].Action)
	require.Equal(t, "recovery_signature", rows[0].Reason)
	require.Equal(t, h.id, rows[0].Detail["path_node"])
	assert.InDelta(t, 6, r.series("gpuaas_unauthenticated_refusals_total"), 0, "the others are counted, and recorded within a minute")
	r.works(h)
}
