package adminapi_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/boot"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// IssueBoot implements boot.Tokens.
func (d *backend) IssueBoot(_ context.Context, m trust.MintedToken, _ activities.Fence, _ time.Duration) error {
	d.steps = append(d.steps, "reference")
	d.minted = m
	return d.issueErr
}

// TestUserDataInstalls: the user data of a new machine installs the agent, and the agent's token
// is created when the machine has its package.
func TestUserDataInstalls(t *testing.T) {
	t.Parallel()
	m, d, o := newMachine(t), newBackend(), newOutlet(t)
	o.serve(t, d)
	issuer := boot.Issuer{Tokens: d, CA: func(context.Context) (string, error) { return d.ca, nil }, NodeURL: d.url}
	b, err := issuer.NewBoot(t.Context(), activities.Fence{NodeID: d.node.ID})
	require.NoError(t, err)
	said, code := m.run(string(b.UserData))
	require.Zero(t, code, said)
	assert.Equal(t, []string{"reference", "check", "trust", "trust", "spend", "issue"}, d.steps)
	files := m.files()
	env := files[trust.DefaultEnvFile]
	_, hash, err := trust.ParseToken(tokenOf(t, env))
	require.NoError(t, err)
	assert.Equal(t, d.minted.Hash, hash)
	assert.NotContains(t, env, b.Reference)
	assert.Contains(t, files[trust.DefaultInstallRoot+"/bin/gpuaas-node-agent"], "echo v1")
	assert.NotContains(t, said, trust.TokenPrefix)
}

// TestScriptOfReference: the script of a reference is that of bootstrap-script --fetch-ref.
func TestScriptOfReference(t *testing.T) {
	t.Parallel()
	d := newBackend()
	newOutlet(t).serve(t, d)
	d.node.WorkloadDriver = "docker"
	text := d.bootstrap(t, `{"fetch_ref":true}`)
	reference := regexp.MustCompile(trust.TokenPrefix + `[A-Za-z0-9._-]+`).FindString(text)
	by := audit.Subject{Actor: "fetch:10.0.0.1", CorrelationID: "c"}
	d.steps = nil
	nodeID, script, err := d.exchange().Script(t.Context(), reference, by)
	require.NoError(t, err)
	assert.Equal(t, d.node.ID, nodeID)
	assert.Equal(t, text, script)
	assert.Equal(t, []string{"check", "trust"}, d.steps)
}

func TestScriptIsRefused(t *testing.T) {
	t.Parallel()
	reference, _, _ := trust.NewToken()
	down := schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
	for name, c := range map[string]struct {
		spoil     func(*backend)
		reference string
		kind      schema.Kind
		reason    string
		steps     []string
	}{
		"malformed": {func(*backend) {}, "x", schema.KindUnauthenticated, "reference_malformed", nil},
		"used": {func(d *backend) {
			d.fetchErr, d.trustErr = schema.NewError(schema.KindTokenConsumed, "used").WithReason("token_used"), down
		}, reference, schema.KindTokenConsumed, "token_used", []string{"check"}},
		"no trust":   {func(d *backend) { d.trustErr = down }, reference, schema.KindServiceUnavailable, "", []string{"check", "trust"}},
		"no package": {func(d *backend) { d.pack = nil }, reference, schema.KindInvalidRequest, "no_package", []string{"check", "trust"}},
		"bad host":   {func(d *backend) { d.node.Host = "a;b" }, reference, schema.KindInvalidRequest, "bad_host", []string{"check", "trust"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newBackend()
			newOutlet(t).serve(t, d)
			c.spoil(d)
			_, script, err := d.exchange().Script(t.Context(), c.reference, audit.Subject{})
			require.Equal(t, c.kind, schema.KindOf(err), "%v", err)
			assert.Equal(t, c.reason, schema.AsError(err).Reason)
			assert.Empty(t, script)
			assert.Equal(t, c.steps, d.steps)
			assert.NotContains(t, err.Error(), trust.TokenPrefix)
		})
	}
}
