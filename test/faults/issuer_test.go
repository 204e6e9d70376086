package faults_test

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// TestIssuerReplaced replaces the node CA while a node has an open connection, with
// the real agent and the real node API over TLS. The API's response reports a retired
// CA, and the next handshake reveals a deleted one. In both cases the node recovers,
// and the rejection is logged with its certificate.
func TestIssuerReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(*authority) error
		polls []string // responses to the polls until the node recovers
	}{
		"retired": {
			end: func(a *authority) error {
				err := a.replace(true)
				a.distrustOld()
				return err
			},
			polls: []string{"nothing, poll: invalid_node_identity issuer_retired"},
		},
		"gone": {
			end: func(a *authority) error { return a.replace(false) },
			polls: []string{"nothing, poll: invalid_node_identity unknown_issuer",
				"nothing, poll: service_unavailable "}, // the handshake does not name the node's issuer
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, log := newWorld(t, false), &strings.Builder{}
			auth, err := newAuthority(w.db.clock, seeded(1, forAgent))
			require.NoError(t, err)
			s := newSite(w.nodeStore(), auth, w.db.clock, w.cert, log)
			s.start()
			t.Cleanup(s.stop)
			id, err := w.register(t.Context(), 1)
			require.NoError(t, err)
			root := filepath.Join(w.dir, id)
			node := newMachine(layout(id, root, w.caPath), s, slog.New(slog.DiscardHandler), newDisk(root, seeded(1, forDisk)))
			node.r = seeded(1, forAgent)
			t.Cleanup(node.halt)
			token, err := w.issue(t.Context(), id, trust.PurposeEnroll)
			require.NoError(t, err)
			node.setToken(token)
			node.agent, err = node.make(node, func(c *tls.Config) http.RoundTripper {
				c = c.Clone()
				c.Time = node.Now
				return &http.Transport{TLSClientConfig: c, DialContext: s.wire.Dial}
			})
			require.NoError(t, err)
			step := func() string {
				outcome, _ := node.step(t.Context())
				return outcome
			}
			require.Equal(t, "enroll, poll accepted", step())
			old, _, _ := node.agent.Certificate()
			require.NoError(t, c.end(auth))
			for _, want := range c.polls {
				require.Equal(t, want, step())
			}
			require.Equal(t, "recover, poll accepted", step())
			s.stop()
			require.Contains(t, log.String(), old.Fingerprint)
		})
	}
}
