package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// shortValidity is short enough for a test to wait for the expiry.
const shortValidity = 12 * time.Second

// TestShortLivedCertificate: an agent renews its certificate repeatedly, with a new
// key each time. If the API is down until the certificate has expired, it recovers.
func TestShortLivedCertificate(t *testing.T) {
	restore := setValidity(t, shortValidity)
	nodeHost, id := enrolled(t, "short")
	first := show(t, id)
	eventually(t, "two renewals", func() bool { return nodeEvents(t, id, "nodes.renewal_claimed") >= 2 })
	renewed := show(t, id)
	require.Equal(t, first.Incarnation, renewed.Incarnation)
	require.NotEqual(t, first.Identity.SPKI, renewed.Identity.SPKI)

	recoveries := nodeEvents(t, id, "nodes.recovery_claimed")
	kill(t, "api", "")
	end := certificateEnd(t, nodeHost)
	restore()
	eventually(t, "the certificate ends", func() bool { return time.Now().After(end.Add(time.Second)) })
	ok(t, "dev", "up", "--detach", "--dir", shared.Dir)
	eventually(t, "the node is back", func() bool {
		n := show(t, id)
		return n.Identity != nil && time.Until(n.Identity.NotAfter) > time.Hour && n.PendingIdentity == nil
	})
	require.Positive(t, nodeEvents(t, id, "nodes.recovery_claimed")-recoveries)
	require.Equal(t, first.Incarnation, show(t, id).Incarnation)
	require.Nil(t, show(t, id).IdentityLock)
	requireNodeWorks(t, nodeHost, id)
}

// requireNodeWorks verifies that the node still runs tasks with its identity.
func requireNodeWorks(t *testing.T, nodeHost, id string) {
	t.Helper()
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "drain", nodeHost, "--yes").Operation.Status)
	require.Equal(t, lifecycle.NodeDrained, show(t, id).State)
	ok(t, "audit", "--verify")
}

// nodeEvents counts the node's audit events of an action.
func nodeEvents(t *testing.T, id, action string) (n int) {
	t.Helper()
	for _, e := range auditEvents(t, id) {
		if e.Action == action {
			n++
		}
	}
	return n
}

// certificateEnd returns the latest expiry of the agent's certificates.
func certificateEnd(t *testing.T, nodeHost string) (end time.Time) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(agentDir(nodeHost), "state", "identity*", "*", "cert.pem"))
	require.NoError(t, err)
	for _, f := range append(files, filepath.Join(agentDir(nodeHost), "cert.pem")) {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		block, _ := pem.Decode(raw)
		require.NotNil(t, block, f)
		cert, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		if cert.NotAfter.After(end) {
			end = cert.NotAfter
		}
	}
	return end
}

// setValidity changes the validity of new certificates in Vault's role, like an operator
// would, until the test ends or restore is called.
func setValidity(t *testing.T, life time.Duration) (restore func()) {
	t.Helper()
	var role struct {
		Data map[string]any `json:"data"`
	}
	require.NoError(t, json.Unmarshal(vault(t, http.MethodGet, "pki-node/roles/node", nil), &role))
	restore = func() { vault(t, http.MethodPost, "pki-node/roles/node", role.Data) }
	t.Cleanup(restore)
	short := maps.Clone(role.Data)
	short["ttl"], short["max_ttl"], short["not_before_duration"] = life.Seconds(), life.Seconds(), 1
	vault(t, http.MethodPost, "pki-node/roles/node", short)
	return restore
}

// vault calls the stack's Vault with the root token.
func vault(t *testing.T, method, path string, body any) []byte {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(shared.Dir, "secrets", "vault-root-token"))
	require.NoError(t, err)
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), conditionTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, shared.Getenv("VAULT_ADDR")+"/v1/"+path, bytes.NewReader(raw))
	require.NoError(t, err)
	req.Header.Set("X-Vault-Token", strings.TrimSpace(string(token)))
	answer, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Less(t, answer.StatusCode, http.StatusBadRequest, "%s %s: %s", method, path, text)
	return text
}
