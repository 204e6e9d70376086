package faults_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/api/nodeapi"
	vaultclient "github.com/gpuaas/gpuaas/internal/vault"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestThroughVault runs a lifecycle with the real Vault as CA: enrollment, renewal and
// recovery, each with an API crash at every commit point, and each started while Vault
// is sealed. Vault uses real time, so the clocks stay close to it. A node whose clock
// is a week ahead considers its certificate expired, which simulates a disconnection.
func TestThroughVault(t *testing.T) { //nolint:paralleltest // it seals the shared Vault
	server := vault.Get(t)
	dir := filepath.Join(t.TempDir(), "vault")
	log := slog.New(slog.DiscardHandler)
	admin, err := vaultclient.NewAdmin(vaultclient.AdminConfig{Address: server.Address, TokenFile: server.TokenFile, Env: testEnv, Log: log})
	require.NoError(t, err)
	require.NoError(t, admin.Setup(t.Context(), []string{serverName}, dir))
	client, err := vaultclient.Login(t.Context(), vaultclient.Config{Address: server.Address, Env: testEnv, Log: log,
		RoleIDFile: filepath.Join(dir, "api-role-id"), SecretIDFile: filepath.Join(dir, "api-secret-id")})
	require.NoError(t, err)
	t.Cleanup(client.Close)

	w := newWorld(t, true)
	for _, at := range []point{"", atClaim, atSign, atPend, atPromote} {
		for _, k := range []kind{kindCrashBefore, kindCrashAfter} {
			t.Run(fmt.Sprintf("%s %s", k, at), func(t *testing.T) {
				require.NoError(t, w.db.set(t.Context(), time.Now()))
				l := &vaultLifecycle{t: t, w: w, at: at, kind: k, seal: func() { server.Seal(t) }, unseal: func() { server.Unseal(t) }}
				l.live(client)
			})
			if at == "" {
				break
			}
		}
	}
}

// vaultLifecycle is one lifecycle with one fault per stage.
type vaultLifecycle struct {
	t            *testing.T
	w            *world
	at           point
	kind         kind
	seal, unseal func()

	site *site
	node *machine
}

func (l *vaultLifecycle) live(issuer nodeapi.Issuer) {
	ctx := l.t.Context()
	l.site = newSite(l.w.nodeStore(), issuer, l.w.db.clock, l.w.cert, new(strings.Builder))
	l.site.start()
	defer l.site.stop()
	id, err := l.w.register(ctx, uint64(l.w.runs)+1)
	require.NoError(l.t, err)
	root := filepath.Join(l.w.dir, id)
	l.node = newMachine(layout(id, root, l.w.caPath), l.site, slog.New(slog.DiscardHandler), newDisk(root, seeded(1, forDisk)))
	l.node.r = seeded(1, forAgent)
	defer l.node.halt()
	token, err := l.w.issue(ctx, id, trust.PurposeEnroll)
	require.NoError(l.t, err)
	l.node.setToken(token)

	l.runStage(ctx, "enroll", trust.IssuedByEnroll, atClaim)
	require.NoError(l.t, l.w.finish(ctx, id, activities.Finish{Status: lifecycle.OperationCompleted, Node: lifecycle.NodeActive}))
	require.NoError(l.t, l.w.db.advance(ctx, trust.CertTTL*60/100))
	l.runStage(ctx, "renew", trust.IssuedByRenew, atClaimRenewal)
	require.NoError(l.t, l.w.db.set(ctx, time.Now()))
	l.node.halt() // the process loses the server's time
	l.node.skew = 7 * 24 * time.Hour
	l.runStage(ctx, "recover", trust.IssuedByRecover, atClaimRecover)
	require.NoError(l.t, l.w.verifyAudit(ctx, id))
}

// runStage starts with a sealed Vault and an armed fault, and ends with an accepted poll
// under another certificate.
func (l *vaultLifecycle) runStage(ctx context.Context, name string, via trust.IssueMethod, claim point) {
	before := l.current(ctx)
	if l.at == "" {
		l.seal()
	} else {
		at := l.at
		if at == atClaim {
			at = claim
		}
		l.site.points.arm(at, l.kind)
	}
	var messages []string
	for i := range recoverySteps {
		if i == 2 && l.at == "" {
			l.unseal()
		}
		words, wait := l.node.step(ctx)
		messages = append(messages, words)
		if l.site.gate.isDead() {
			l.site.restart()
		}
		now := l.current(ctx)
		if l.node.accepted && (now != before && strings.HasPrefix(now, string(via)) || l.known(via)) {
			return
		}
		require.NoError(l.t, l.w.db.advance(ctx, min(max(wait, 5*time.Second), 10*time.Minute)))
	}
	require.Fail(l.t, name+" did not come true", strings.Join(messages, "\n"))
}

// known is true if the rejection while Vault was sealed contained the time, so that
// the node considers its certificate valid again.
func (l *vaultLifecycle) known(via trust.IssueMethod) bool {
	return l.at == "" && via == trust.IssuedByRecover
}

// current returns the issue method and the serial of the current certificate.
func (l *vaultLifecycle) current(ctx context.Context) string {
	var s string
	err := l.w.db.raw.QueryRow(ctx, `SELECT coalesce(max(via || ' ' || serial), '') FROM node_certificates
		WHERE node_id = $1 AND slot = 'current'`, l.node.id).Scan(&s)
	require.NoError(l.t, err)
	return s
}
