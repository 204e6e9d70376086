package vault

import (
	"crypto/x509"
	"errors"
	"net/http"
	"testing"

	"github.com/hashicorp/vault/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

// caRotation is a rotation of the node CA with the rotator's login, and the API's client.
type caRotation struct {
	*bench
	t       *testing.T
	rotator *Rotator
	api     *Client
	r       rotation.Rotation
}

func rotatingCA(t *testing.T) *caRotation {
	t.Helper()
	b := prepared(t)
	rotator, err := LoginRotator(t.Context(), b.config("rotator"))
	require.NoError(t, err)
	t.Cleanup(rotator.Close)
	c := &caRotation{bench: b, t: t, rotator: rotator, api: b.login(t, "api"), r: rotation.Begin(rotation.NodeCA, "", 0)}
	c.plan()
	return c
}

func (c *caRotation) plan() {
	c.t.Helper()
	var err error
	c.r.OldKey, c.r.NewKey, err = c.rotator.PlanCA(c.t.Context())
	require.NoError(c.t, err)
}

// apply makes the CA as a phase requires, twice, and returns what nodes must have.
func (c *caRotation) apply(p rotation.Phase) rotation.CA {
	c.t.Helper()
	c.r.Phase = p
	first, err := c.rotator.ApplyCA(c.t.Context(), c.r)
	require.NoError(c.t, err)
	again, err := c.rotator.ApplyCA(c.t.Context(), c.r)
	require.NoError(c.t, err)
	require.Equal(c.t, first, again, "a second run changes nothing")
	return first
}

// refused returns the error of a phase that the CAs of Vault do not allow.
func (c *caRotation) refused(p rotation.Phase) *schema.Error {
	c.t.Helper()
	c.r.Phase = p
	_, err := c.rotator.ApplyCA(c.t.Context(), c.r)
	e := schema.AsError(err)
	require.NotNil(c.t, e, p)
	return e
}

// requireCA checks what the API sees: the CAs that it trusts and has retired, and the one that
// issues.
func (c *caRotation) requireCA(want rotation.CA, live, retired int) {
	c.t.Helper()
	seen, err := c.api.readCAs(c.t.Context(), c.api.nodeCAs)
	require.NoError(c.t, err)
	require.Len(c.t, seen.live, live)
	require.Len(c.t, seen.retired, retired)
	require.Equal(c.t, want.Bundle, trust.BundleDigest(seen.live...))
	issued, err := c.api.Issue(c.t.Context(), csrtest.New(c.t, x509.CertificateRequest{}, csrtest.Key(c.t)), nodeIdentity())
	require.NoError(c.t, err)
	require.Equal(c.t, want.Issuer, issued.Facts.Issuer)
}

// TestNodeCARotation goes through the phases with the rotator's login: both CAs are trusted from
// the first phase to the last, and the issuing one changes in between.
func TestNodeCARotation(t *testing.T) {
	c := rotatingCA(t)
	require.Equal(t, []string{"g1", "g2"}, []string{c.r.OldKey, c.r.NewKey})
	c.plan()
	require.Equal(t, "g2", c.r.NewKey, "a plan creates nothing")

	staged := c.apply(rotation.Stage)
	require.Equal(t, "CN=gpuaas test node CA G1", staged.Issuer)
	c.requireCA(staged, 2, 0)
	active := c.apply(rotation.Activate)
	require.Equal(t, "CN=gpuaas test node CA G2", active.Issuer)
	require.NotEqual(t, staged.IssuerKey, active.IssuerKey)
	require.Equal(t, staged.Bundle, active.Bundle)
	c.requireCA(active, 2, 0)
	require.Equal(t, active, c.apply(rotation.Grace))
	retired := c.apply(rotation.Retire)
	require.NotEqual(t, active.Bundle, retired.Bundle)
	c.requireCA(retired, 1, 1)

	require.NoError(t, c.install.setup(t), "setup keeps the CA that issues")
	c.requireCA(retired, 1, 1)
	c.plan()
	require.Equal(t, []string{"g2", "g3"}, []string{c.r.OldKey, c.r.NewKey})
}

// TestNodeCARollback: the old CA issues again, and the next rotation does not use the name or
// the key of the one that was undone.
func TestNodeCARollback(t *testing.T) {
	c := rotatingCA(t)
	staged := c.apply(rotation.Stage)
	c.apply(rotation.Activate)
	require.Equal(t, staged, c.apply(rotation.Restore))
	c.requireCA(staged, 2, 0)
	removed := c.apply(rotation.Remove)
	require.Equal(t, staged.Issuer, removed.Issuer)
	c.requireCA(removed, 1, 1)
	c.plan()
	require.Equal(t, []string{"g1", "g3"}, []string{c.r.OldKey, c.r.NewKey})

	c.r.NewKey = "g4" // a rollback before the CA was created
	require.Equal(t, removed, c.apply(rotation.Remove))
}

// TestNodeCALostEnd: if the database lost the end of a rotation, Vault has retired the old CA. It
// does not issue again, whatever phase is on record, so that certificates can be issued.
func TestNodeCALostEnd(t *testing.T) {
	c := rotatingCA(t)
	for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate} {
		c.apply(p)
	}
	ended := c.apply(rotation.Retire)
	for _, p := range []rotation.Phase{rotation.Restore, rotation.Remove} {
		e := c.refused(p)
		require.Equal(t, "old_key_retired", e.Reason)
		require.Equal(t, "Vault has retired g1, so the rotation cannot be rolled back", e.Message)
		require.Contains(t, e.Next, "gpuaas rotate resume --reason TEXT")
		c.requireCA(ended, 1, 1)
	}
	for _, p := range []rotation.Phase{rotation.Stage, rotation.Activate, rotation.Grace, rotation.Retire} {
		require.Equal(t, ended, c.apply(p), p)
		c.requireCA(ended, 1, 1)
	}
}

// TestNodeCADriftIsRepaired: after a delayed run of an earlier phase, the next run of the current
// one makes what it made before.
func TestNodeCADriftIsRepaired(t *testing.T) {
	for _, current := range []struct {
		phases        []rotation.Phase // in order, the current one last
		live, retired int
	}{
		{[]rotation.Phase{rotation.Stage, rotation.Activate}, 2, 0},
		{[]rotation.Phase{rotation.Stage, rotation.Activate, rotation.Retire}, 1, 1},
		{[]rotation.Phase{rotation.Stage, rotation.Activate, rotation.Restore}, 2, 0},
		{[]rotation.Phase{rotation.Stage, rotation.Activate, rotation.Restore, rotation.Remove}, 1, 1},
	} {
		last := len(current.phases) - 1
		t.Run(string(current.phases[last]), func(t *testing.T) {
			c := rotatingCA(t)
			var want rotation.CA
			for _, p := range current.phases {
				want = c.apply(p)
			}
			for _, delayed := range current.phases[:last] {
				c.r.Phase = delayed
				_, err := c.rotator.ApplyCA(t.Context(), c.r)
				if current.phases[last] == rotation.Remove && delayed != rotation.Restore {
					require.Equal(t, "new_key_retired", schema.AsError(err).Reason)
					c.requireCA(want, current.live, current.retired)
				} else {
					require.NoError(t, err)
				}
				require.Equal(t, want, c.apply(current.phases[last]), "after %s", delayed)
				c.requireCA(want, current.live, current.retired)
			}
		})
	}
}

// TestNodeCARetiresAllOthers: a rotation that a revocation ended leaves both CAs trusted, and the
// next one retires both.
func TestNodeCARetiresAllOthers(t *testing.T) {
	c := rotatingCA(t)
	c.apply(rotation.Stage)
	c.requireCA(c.apply(rotation.Activate), 2, 0)
	c.plan()
	require.Equal(t, []string{"g2", "g3"}, []string{c.r.OldKey, c.r.NewKey})
	c.requireCA(c.apply(rotation.Stage), 3, 0)
	c.apply(rotation.Activate)
	c.requireCA(c.apply(rotation.Retire), 1, 2)
}

// TestRotatorCannot: the rotator's login makes and retires CAs and selects one, and nothing else.
func TestRotatorCannot(t *testing.T) {
	c := rotatingCA(t)
	c.apply(rotation.Stage)
	csr := trust.EncodeCertificates() // any text: the policy is checked first
	for name, r := range map[string]request{
		"issue a certificate":         put("pki-node/sign/node", map[string]any{"csr": csr, "uri_sans": nodeIdentity().URI()}),
		"change the role":             patch("pki-node/roles/node", map[string]any{"allow_any_name": true}),
		"replace the role":            put("pki-node/roles/node", map[string]any{"issuer_ref": "g1"}),
		"revive a CA":                 patch("pki-node/issuer/g1", map[string]any{"usage": "read-only,issuing-certificates"}),
		"rename a CA":                 patch("pki-node/issuer/g1", map[string]any{"issuer_name": "g9"}),
		"make a CA of another name":   put("pki-node/root/generate/internal", map[string]any{"common_name": "x", "issuer_name": "g9", "key_name": "g9", "ttl": "1h", "max_path_length": 0}),
		"make a CA that signs others": put("pki-node/root/generate/internal", map[string]any{"common_name": "gpuaas test node CA G9", "issuer_name": "g9", "key_name": "g9", "ttl": "1h", "max_path_length": 1}),
		"export a CA":                 put("pki-node/root/generate/exported", map[string]any{"common_name": "gpuaas test node CA G9"}),
		"change the API's CA":         patch("pki-api/issuer/g1", map[string]any{"usage": "read-only"}),
	} {
		_, err := c.rotator.client.send(t.Context(), r)
		answer, ok := errors.AsType[*api.ResponseError](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, http.StatusForbidden, answer.StatusCode, name)
	}
}
