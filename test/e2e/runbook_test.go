package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// createNode is the runbook's request with the token and address of dev env.
const createNode = `curl -s -o "$OUT" -w '%{http_code}' -X POST "$GPUAAS_API_URL/api/v1/admin/nodes" \
-H "Authorization: Bearer ${ADMIN_TOKEN}" \
-H "Content-Type: application/json" \
-H "X-Correlation-Id: ${CORRELATION_ID}" \
-d '{
"host":"<NODE_IP>",
"port":22,
"ssh_username":"hpcadmin",
"ssh_public_key":"ssh-ed25519 AAAA...",
"sku":"h100",
"gpus_total":8,
"region_code":"region-1",
"onboarding_mode":"manual",
"probe":true
}'`

const postNode = `curl -s -o "$OUT" -w '%{http_code}' -X POST "$GPUAAS_API_URL/api/v1/admin/nodes/${NODE_ID}/$VERB" \
-H "Authorization: Bearer ${ADMIN_TOKEN}" -H "X-Correlation-Id: ${CORRELATION_ID}"`

// curl runs a command line of the runbook with the environment of dev env and returns
// status and body.
func curl(t *testing.T, command string, vars ...string) (status string, body []byte) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "answer.json")
	c := exec.Command("sh", "-c", command)
	c.Env = append(append(os.Environ(), shared.Env...), append(vars, "OUT="+out, "ADMIN_TOKEN="+shared.Getenv("GPUAAS_API_TOKEN"))...)
	code, err := c.Output()
	require.NoError(t, err)
	body, err = os.ReadFile(out)
	require.NoError(t, err)
	shared.secrets.read(body)
	return string(code), body
}

// TestRunbook runs the requests of the onboarding runbook literally.
func TestRunbook(t *testing.T) {
	address := fmt.Sprintf("10.%d.%d.%d", rand.N(256), rand.N(256), 1+rand.N(254))
	create := strings.ReplaceAll(createNode, "<NODE_IP>", address)
	status, body := curl(t, create)
	require.Equal(t, "201", status, "%s", body)
	var node struct{ ID string }
	require.NoError(t, json.Unmarshal(body, &node))
	require.True(t, schema.IsID(node.ID), "%s", body)

	correlation := schema.NewID()
	status, body = curl(t, create, "CORRELATION_ID="+correlation)
	require.Equal(t, "400", status)
	requireEnvelope(t, body, correlation, schema.KindInvalidRequest)

	status, body = curl(t, postNode, "NODE_ID="+node.ID, "VERB=reissue-enrollment")
	require.Equal(t, "202", status, "%s", body)
	var reissued struct {
		RecoveryBundle map[string]any `json:"recovery_bundle"`
	}
	require.NoError(t, json.Unmarshal(body, &reissued))
	require.Contains(t, reissued.RecoveryBundle["restart_command"], "GPUAAS_ENROLLMENT_TOKEN")
	for _, name := range []string{"GPUAAS_NODE_ID", "GPUAAS_ENROLLMENT_TOKEN", "GPUAAS_API_URL", "GPUAAS_TASK_SIGNING_PUBKEYS",
		"GPUAAS_CA_BUNDLE_PATH", "GPUAAS_NODE_CERT_CA_BUNDLE_PATH", "GPUAAS_CERT_PATH", "GPUAAS_KEY_PATH", "ca_bundle_pem", "ca_bundle_fingerprint"} {
		require.NotEmpty(t, reissued.RecoveryBundle[name], name)
	}
	status, body = curl(t, postNode, "NODE_ID="+node.ID, "VERB=bootstrap-script")
	require.Equal(t, "200", status, "%s", body)
	var script wire.BootstrapScriptResponse
	require.NoError(t, json.Unmarshal(body, &script))
	require.True(t, strings.HasPrefix(script.Script, "#!/bin/sh\n"))
	require.Contains(t, script.Script, trust.TokenPrefix)
	status, body = curl(t, postNode+` -d '{"fetch_ref":true}'`, "NODE_ID="+node.ID, "VERB=bootstrap-script")
	require.Equal(t, "200", status, "%s", body)

	status, body = curl(t, postNode, "NODE_ID="+schema.NewID(), "VERB=reissue-enrollment", "CORRELATION_ID="+correlation)
	require.Equal(t, "404", status)
	requireEnvelope(t, body, correlation, schema.KindNotFound)
	ok(t, "op", "cancel", node.ID, "--reissue", "--reason", "test")
	ok(t, "op", "cancel", node.ID, "--reason", "test")
}

// requireEnvelope verifies that an error has code, message and the caller's
// correlation id, and that the API's log contains that id.
func requireEnvelope(t *testing.T, body []byte, correlation string, code schema.Kind) {
	t.Helper()
	var e schema.ErrorBody
	require.NoError(t, json.Unmarshal(body, &e))
	require.Equal(t, code, e.Error.Code)
	require.NotEmpty(t, e.Error.Message)
	require.Equal(t, correlation, e.Error.CorrelationID)
	log, err := os.ReadFile(filepath.Join(shared.Dir, "log", "api.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), `"correlation_id":"`+correlation+`"`)
}
