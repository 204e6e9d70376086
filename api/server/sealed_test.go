package server

import (
	"crypto/ecdsa"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/vaulttest"
)

// realVault returns a cluster whose certificates come from Vault.
func realVault(tb testing.TB) (*cluster, *vaulttest.Server, *vault.Client) {
	tb.Helper()
	server, dir := sharedVault.Get(tb), tb.TempDir()
	require.NoError(tb, vaultAdmin(tb, server).Setup(tb.Context(), []string{"localhost"}, dir))
	client, err := vault.Login(tb.Context(), vault.Config{Address: server.Address, Env: testEnv, Log: slog.New(slog.DiscardHandler),
		RoleIDFile: filepath.Join(dir, "api-role-id"), SecretIDFile: filepath.Join(dir, "api-secret-id")})
	require.NoError(tb, err)
	tb.Cleanup(client.Close)
	set := newestSet(tb, server)
	require.NoError(tb, client.Follow(tb.Context(), set))
	c := newClusterWith(tb, set)
	c.issuer, c.follow = client, client.Follow
	c.grants, err = client.Grants(func(bool) {})
	require.NoError(tb, err)
	return c, server, client
}

// While Vault is sealed, nodes keep working and every claim stays bound to its key.
// After it is unsealed, all requests succeed.
func TestVaultSealed(t *testing.T) {
	c, server, _ := realVault(t)
	r := c.replica()
	vias := []trust.IssueMethod{trust.IssuedByEnroll, trust.IssuedByRenew, trust.IssuedByRecover}
	type asking struct {
		h    *holder
		key  *ecdsa.PrivateKey
		path string
		body any
	}
	all := map[trust.IssueMethod]*asking{}
	for _, via := range vias {
		a := &asking{h: &holder{recovery: newRecoveryKey(t)}, key: newKey(t)}
		if via == trust.IssuedByEnroll {
			a.h.machine = r.bundle()
		} else {
			a.h = r.holder()
		}
		a.path, a.body = a.h.request(t, via)(a.key)
		all[via] = a
	}
	server.Seal(t)
	for _, via := range vias {
		a := all[via]
		got := r.post(a.h, a.path, a.body)
		r.refusal(got, schema.KindServiceUnavailable, "")
		assert.Contains(t, got.refusal(t).Message, "the claim remains valid for this key")
		if via != trust.IssuedByEnroll {
			r.works(a.h)
		}
		if via != trust.IssuedByRenew {
			path, body := a.h.request(t, via)(newKey(t))
			r.refusal(r.bare(a.h, path, body), schema.KindTokenConsumed, "token_claimed")
		}
	}
	server.Unseal(t)
	for _, via := range vias {
		a := all[via]
		var got reply
		require.Eventually(t, func() bool { // the client may back off for a moment
			got = r.post(a.h, a.path, a.body)
			return got.status == http.StatusOK
		}, harness.Timeout, 100*time.Millisecond, via)
		a.h.take(t, got, a.key)
		r.works(a.h)
	}
}

// BenchmarkEnrollAgainstBareVault reports how many certificates per second Vault
// signs for direct callers and for nodes that enroll, with eight callers each, and
// the ratio of the two. Keys and requests are prepared before, and both sides warm
// up before they are timed. Everything shares one machine, including the callers,
// so the ratio compares the work and not the speed of Vault alone.
func BenchmarkEnrollAgainstBareVault(b *testing.B) {
	if testing.Short() {
		b.Skip("needs a Vault")
	}
	const warm, nodes, callers = 400, 800, 8
	c, server, _ := realVault(b)
	root := server.Root(b)
	requests, fresh := make([]string, warm+nodes), make([]string, warm+nodes)
	for b.Loop() {
		for i := range fresh { // a key belongs to one node
			requests[i], fresh[i] = newCSR(b, newKey(b), nil), newCSR(b, newKey(b), nil)
		}
		r := c.replica()
		tokens := tokensOf(b, r, warm+nodes)
		clients := make([]*http.Client, callers)
		for i := range clients {
			clients[i] = r.client(nil)
			_, err := send(b.Context(), clients[i], http.MethodGet, r.node+"/api/v1/healthz", nil)
			require.NoError(b, err)
		}
		bare := rate(b, warm, nodes, callers, func(_, i int) error {
			id := trust.Identity{Env: testEnv, NodeID: schema.NewID(), Incarnation: 1}
			_, err := root.Logical().WriteWithContext(b.Context(), "pki-node/sign/node", map[string]any{"csr": requests[i], "uri_sans": id.URI()})
			return err
		})
		enroll := rate(b, warm, nodes, callers, func(caller, i int) error {
			a, err := send(b.Context(), clients[caller], http.MethodPost, r.node+"/internal/v1/nodes/"+tokens[i].nodeID+"/enroll",
				wire.EnrollRequest{Token: tokens[i].text, CSR: fresh[i]})
			if err == nil && a.status != http.StatusOK {
				err = fmt.Errorf("%d %s", a.status, a.body)
			}
			return err
		})
		b.ReportMetric(bare, "bare/s")
		b.ReportMetric(enroll, "enroll/s")
		b.ReportMetric(enroll/bare, "ratio")
	}
}

type nodeToken struct{ nodeID, text string }

// tokensOf registers nodes and mints a token for each.
func tokensOf(b *testing.B, r *replica, n int) []nodeToken {
	b.Helper()
	out := make([]nodeToken, n)
	by := audit.Subject{Actor: "bench"}
	for i := range out {
		node, err := r.store.Admin.Register(b.Context(), schema.NewID(), wire.RegisterNodeRequest{Host: "h" + schema.NewID(), Port: 22, SKU: "cpu-dev",
			RegionCode: "r", OnboardingMode: "manual", LifecycleClass: inventory.ClassPersistent}, by)
		require.NoError(b, err)
		text, id, hash := trust.NewToken()
		require.NoError(b, r.store.Identities.IssueToken(b.Context(), trust.MintedToken{NodeID: node.ID, TokenID: id, Hash: hash,
			Purpose: trust.PurposeEnroll, ExpiresAt: time.Now().Add(time.Hour)}, by))
		out[i] = nodeToken{node.ID, text}
	}
	return out
}

// rate calls do warm times and then n times from that many callers, and returns
// the rate of the latter per second.
func rate(b *testing.B, warm, n, callers int, do func(caller, i int) error) float64 {
	b.Helper()
	all(b, 0, warm, callers, do)
	start := time.Now()
	all(b, warm, warm+n, callers, do)
	return float64(n) / time.Since(start).Seconds()
}

// all calls do for each index from first up to end, from that many callers.
func all(b *testing.B, first, end, callers int, do func(caller, i int) error) {
	b.Helper()
	var next atomic.Int64
	next.Store(int64(first))
	var group sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < end && errs[caller] == nil; i = int(next.Add(1)) - 1 {
				errs[caller] = do(caller, i)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(b, err)
	}
}
