package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
)

// asNode is an HTTP client with the identity of a node's agent.
func asNode(t *testing.T, nodeHost string) *http.Client {
	t.Helper()
	dir := agentDir(nodeHost)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	require.NoError(t, err)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: serverCA(t, nodeHost), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
	}}}
}

func serverCA(t *testing.T, nodeHost string) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(filepath.Join(agentDir(nodeHost), "ca-bundle.crt"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pem))
	return pool
}

// call sends a request to the node API and returns status and envelope.
func call(ctx context.Context, t *testing.T, c *http.Client, method, path, body string) (int, schema.ErrorDetail) {
	t.Helper()
	status, detail, err := send(ctx, c, method, path, body)
	require.NoError(t, err)
	return status, detail
}

func send(ctx context.Context, c *http.Client, method, path, body string) (status int, e schema.ErrorDetail, err error) {
	req, err := http.NewRequestWithContext(ctx, method, shared.Getenv("GPUAAS_NODE_API_URL")+path, strings.NewReader(body))
	if err != nil {
		return 0, e, err
	}
	answer, err := c.Do(req)
	if err != nil {
		return 0, e, err
	}
	defer answer.Body.Close()
	var envelope schema.ErrorBody
	raw, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = json.Unmarshal(raw, &envelope)
	}
	return answer.StatusCode, envelope.Error, err
}

// TestRemovedNodeIsRejected: after remove every endpoint returns 401 node_removed, the
// open poll ends, and the agent receives the signed removal, wipes its identity and exits.
func TestRemovedNodeIsRejected(t *testing.T) {
	nodeHost, id := enrolled(t, "removed")
	// The recovery token replaces it when the first poll ends; a wipe removes both.
	token := bundleToken(t, nodeHost)
	act(t, "node", "retire", nodeHost, "--yes")

	node := asNode(t, nodeHost)
	base := "/internal/v1/nodes/" + id
	type ended struct {
		status int
		detail schema.ErrorDetail
		err    error
	}
	poll := make(chan ended, 1)
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()
	go func() {
		status, detail, err := send(ctx, node, http.MethodPost, base+"/tasks/wait",
			`{"wait_seconds":60,"nonce":"AAAAAAAAAAAAAAAAAAAAAA","agent_session":"test"}`)
		poll <- ended{status, detail, err}
	}()
	act(t, "node", "remove", nodeHost, "--yes")
	e := <-poll
	require.NoError(t, e.err)
	require.Equal(t, http.StatusUnauthorized, e.status, "a poll that nothing ends returns 204")
	require.Equal(t, schema.ReasonNodeRemoved, e.detail.Reason)

	task := schema.NewID()
	enroll, err := json.Marshal(wire.EnrollRequest{Token: token, CSR: "x", AgentVersion: "t"})
	require.NoError(t, err)
	for _, r := range []struct{ method, path, body string }{
		{http.MethodGet, base + "/tasks/wait", ""},
		{http.MethodPost, base + "/tasks/" + task + "/result", `{"lease_epoch":1,"status":"succeeded","started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}`},
		{http.MethodPost, base + "/tasks/" + task + "/progress", `{"lease_epoch":1}`},
	} {
		status, detail := call(ctx, t, node, r.method, r.path, r.body)
		require.Equal(t, http.StatusUnauthorized, status, r.path)
		require.Equal(t, schema.KindInvalidNodeIdentity, detail.Code, r.path)
		require.Equal(t, schema.ReasonNodeRemoved, detail.Reason, r.path)
	}
	status, detail := call(ctx, t, node, http.MethodPost, base+"/enroll", strings.Replace(string(enroll), `"x"`, jsonCSR(t), 1))
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, schema.ReasonNodeRemoved, detail.Reason)

	eventually(t, "the agent stops", func() bool { return strings.Contains(agentLog(t, nodeHost), "node removed: the agent stops") })
	for _, name := range []string{"cert.pem", "key.pem"} {
		require.NoFileExists(t, filepath.Join(agentDir(nodeHost), name))
	}
	require.Equal(t, lifecycle.NodeRemoved, show(t, id).State)
	requireNoReissue(t, id, lifecycle.NodeRemoved)
}

// TestWrongStateKeepsTheIdentity: a state in the database is no removal. The agent of the
// node keeps its identity for as long as the state lasts, and works again after it.
func TestWrongStateKeepsTheIdentity(t *testing.T) {
	t.Parallel()
	nodeHost, id := enrolled(t, "wrongstate")
	keys := map[string]string{}
	for _, name := range []string{"cert.pem", "key.pem"} {
		keys[name] = content(t, filepath.Join(agentDir(nodeHost), name))
	}
	set := func(state lifecycle.NodeState) {
		query(t, func(pgx.Rows) {}, "UPDATE nodes SET state = $1 WHERE node_id = $2", state, id)
	}
	set(lifecycle.NodeRemoved)
	eventually(t, "the agent reports the answer", func() bool { return strings.Contains(agentLog(t, nodeHost), "there is no valid removal") })
	refusals := func() (n int) {
		return queryNumber(t, "SELECT count(*) FROM audit_events WHERE stream = $1 AND action = 'nodes.identity_refused'", id)
	}
	eventually(t, "a second refusal, a minute later", func() bool { return refusals() > 1 })
	require.NotContains(t, agentLog(t, nodeHost), "the agent stops")
	for name, text := range keys {
		require.Equal(t, text, content(t, filepath.Join(agentDir(nodeHost), name)))
	}
	require.Zero(t, queryNumber(t, "SELECT count(*) FROM node_removals WHERE node_id = $1", id), "nothing was signed")
	set(lifecycle.NodeActive)
	ok(t, "node", "drain", nodeHost, "--yes", "--wait")
}

// agentLog returns the log of a node's agent.
func agentLog(t *testing.T, nodeHost string) string {
	t.Helper()
	return content(t, filepath.Join(shared.Dir, "log", "agent-"+nodeHost+".log"))
}

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

// TestHostsAreChecked: a host that a shell could read as a command is not registered and
// cannot be stored, and a row with any other bad host gets no script.
func TestHostsAreChecked(t *testing.T) {
	const bad, dots = "::1%\necho PWNED #", "a..b"
	r := run(t, "node", "register", bad, "--sku", "cpu-dev", "--region", "region-1")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "must be a host name or an IP address")
	nodeHost, id := register(t, "badhost")
	const update = "UPDATE nodes SET host = $1 WHERE node_id = $2"
	_, err := harness.Connect(t.Context(), t, shared.Stack).Exec(t.Context(), update, bad, id)
	require.ErrorContains(t, err, "nodes_host_form_check")
	query(t, func(pgx.Rows) {}, update, dots, id)
	defer query(t, func(pgx.Rows) {}, update, nodeHost, id)
	for _, action := range []string{"bootstrap-script", "enroll"} {
		r = run(t, "node", action, id)
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "neither a host name nor an IP address")
		require.NotContains(t, r.stdout, dots)
	}
}

// TestMissingCertificateIsRejected is negative test N4 of the runbook.
func TestMissingCertificateIsRejected(t *testing.T) {
	nodeHost, id := enrolled(t, "nocert")
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: serverCA(t, nodeHost), MinVersion: tls.VersionTLS13}}}
	ctx, cancel := context.WithTimeout(t.Context(), conditionTimeout)
	defer cancel()
	for _, r := range []struct{ method, path, body string }{
		{http.MethodGet, "/tasks/wait", ""}, {http.MethodPost, "/tasks/" + schema.NewID() + "/result", "{}"},
	} {
		status, detail := call(ctx, t, anonymous, r.method, "/internal/v1/nodes/"+id+r.path, r.body)
		require.Equal(t, http.StatusUnauthorized, status)
		require.Equal(t, schema.ReasonNoCertificate, detail.Reason)
	}
	other, otherID := enrolled(t, "other")
	status, detail := call(ctx, t, asNode(t, other), http.MethodGet, "/internal/v1/nodes/"+id+"/tasks/wait", "")
	require.Equal(t, http.StatusUnauthorized, status, "node %s polled for another", otherID)
	require.Equal(t, schema.ReasonIdentityMismatch, detail.Reason)
}
