package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
)

var tokenLine = regexp.MustCompile(`(?m)^GPUAAS_ENROLLMENT_TOKEN="?([^"\n]+)"?$`)

// bundleToken reads the token in the agent's env file: the enrollment token, or the
// recovery token once the identity was used.
func bundleToken(t *testing.T, nodeHost string) string {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(agentDir(nodeHost), "node-agent.env"))
	require.NoError(t, err)
	m := tokenLine.FindSubmatch(env)
	require.NotNil(t, m, "no token in the agent's env file")
	return string(m[1])
}

// jsonCSR returns a new valid CSR as a JSON string.
func jsonCSR(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	raw, err := json.Marshal(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})))
	require.NoError(t, err)
	return string(raw)
}

// TestTokenIsSingleUse: negative tests N1 and N3 of the runbook, with the token of a
// real enrollment. Package api/server has the detailed cases.
func TestTokenIsSingleUse(t *testing.T) {
	nodeHost, id := register(t, "spent")
	file := filepath.Join(t.TempDir(), "bundle.json")
	ok(t, "node", "enroll", nodeHost, "--no-wait", "--bundle", file)
	ok(t, "dev", "agent", nodeHost, "--detach", "--dir", shared.Dir, "--bundle", file)
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	other, otherID := register(t, "foreign")
	ok(t, "node", "enroll", other, "--no-wait", "--bundle", filepath.Join(t.TempDir(), "bundle.json"))
	token := readPrivate[trust.BootstrapBundle](t, file).EnrollmentToken
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: serverCA(t, nodeHost), MinVersion: tls.VersionTLS13}}}
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()

	body := `{"token":"` + token + `","csr":` + jsonCSR(t) + `,"agent_version":"thief"}`
	status, detail := call(ctx, t, client, http.MethodPost, "/internal/v1/nodes/"+id+"/enroll", body)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, schema.KindTokenConsumed, detail.Code)

	status, detail = call(ctx, t, client, http.MethodPost, "/internal/v1/nodes/"+otherID+"/enroll", body)
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, schema.KindUnauthenticated, detail.Code)

	refused := 0
	for _, e := range auditEvents(t, id) {
		if e.Action == audit.TokenRefused {
			refused++
		}
	}
	require.Equal(t, 2, refused, "each rejected claim is audited")
	require.Equal(t, lifecycle.NodeBootstrapIssued, show(t, other).State)
	ok(t, "op", "cancel", other, "--reason", "test")
}
