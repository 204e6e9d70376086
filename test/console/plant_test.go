package console

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
)

// payload is text that is a script in an element, in an attribute, in a URL and in a script, with
// characters that change the direction of text or move the cursor.
const payload = `"><script>alert(1)</script><img src=x onerror=alert(2)>'-alert(3)-'` + "${alert(4)}{{alert(5)}}javascript:alert(6)"

// control are characters that must not reach a page as they are.
const control = "\u202e\u0007\u001b[2J"

// plant writes the payload into each text column that a node or an operator sets, in the rows of a
// node with a parked operation.
func plant(t *testing.T, host string) (nodeID, operationID string) {
	t.Helper()
	nodeID, operationID = show(t, host).ID, operation(t, host).Operation.OperationID
	text, err := json.Marshal(payload + control)
	require.NoError(t, err)
	j := string(text)
	exec := func(sql string, args ...any) { harness.Query(t, stack, nil, sql, args...) }
	evil := payload + strings.ReplaceAll(control, "\u0007", "")
	exec(`INSERT INTO skus SELECT (jsonb_populate_record(s, jsonb_build_object('name', $1::text))).* FROM skus s WHERE name = 'cpu-dev' ON CONFLICT DO NOTHING`, evil)
	exec(`UPDATE nodes SET sku = $2, region_code = $2, agent_version = $2, boot_id = $2, agent_fault = $2, driver = $2, driver_fault = $2,
		ssh_username = $2, labels = jsonb_build_object('rack', $3::jsonb), onboarding_mode = $2,
		facts = jsonb_build_object('os', $3::jsonb, 'kernel', $3::jsonb, 'cpu_model', $3::jsonb),
		workloads = jsonb_build_array(jsonb_build_object('kind', 'process', 'name', $3::jsonb, 'warning', $3::jsonb))
		WHERE node_id = $1`, nodeID, evil, j)
	exec(`UPDATE operations SET actor = $2, reason = $2, outcome = $2, correlation_id = $2,
		stuck = jsonb_set(jsonb_set(stuck, '{message}', $3::jsonb), '{cause}', $3::jsonb),
		document = jsonb_set(jsonb_set(document, '{operation,stuck,message}', $3::jsonb), '{operation,reason}', $3::jsonb) WHERE operation_id = $1`, operationID, evil, j)
	exec(`UPDATE node_tasks SET progress = $2 WHERE node_id = $1`, nodeID, evil)
	return nodeID, operationID
}

// TestHostileText: text of nodes and operators that is a script is shown as text on each page, in
// light and dark: no dialog, no violation of the content security policy.
func TestHostileText(t *testing.T) {
	const host = "con-hostile"
	p := visit(t, "/")
	blocked(t, host)
	eventually(t, "the drain is parked", func() bool { return operation(t, host).Operation.Stuck != nil })
	harness.Kill(t, stack, "agent/"+host) // its heartbeats would replace the text
	nodeID, operationID := plant(t, host)
	for _, path := range everyPage(t, host) {
		p.open(path)
		require.Empty(t, p.unexpected(), path)
	}
	p.open("/nodes/" + nodeID)
	p.sees("<script>alert(1)</script>")
	p.open("/operations/" + operationID)
	p.sees("<script>alert(1)</script>")
	p.open("/")
	p.sees("<script>alert(1)</script>")
	for _, c := range []string{"\u202e", "\u001b"} {
		require.NotContains(t, login(t).page("/nodes/"+nodeID), c)
	}
}

// everyPage lists every page of the console, those about a node with its operation.
func everyPage(t *testing.T, host string) []string {
	t.Helper()
	n := show(t, host)
	all := []string{"/", "/nodes", "/nodes/" + n.ID, "/audit", "/audit?node=" + host, "/trust", "/agents", "/bulk", "/bulk?do=drain&state=active", "/nowhere"}
	return append(all, "/operations", "/operations/"+operation(t, host).Operation.OperationID)
}
