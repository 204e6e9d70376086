package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const agentDoctor = "/opt/gpuaas/node-agent/bin/gpuaas-node-agent doctor"

// TestDoctor: on a real machine, both doctor commands find no fault in a good node, and name a
// lock. Their evidence has no token.
func TestDoctor(t *testing.T) {
	m := newSystemdMachine(t, host(t, "doctor"))
	m.fakeGPUs()
	ok(t, "node", "register", m.host, "--sku", "h100", "--region", "fra1", "--workload-driver", "none")
	newTerminal(t, m).types("gpuaas node bootstrap-script HOST | ssh root@HOST sh", "HOST", m.host)
	waitFor(t, m.host, lifecycle.NodeActive)
	require.NotContains(t, m.do(agentDoctor), "failed")
	ok(t, "doctor", m.host)

	ok(t, "node", "lock", m.host, "--reason", "key leaked")
	eventually(t, "the node API rejects the node", func() bool { return strings.Contains(m.try(agentDoctor), schema.ReasonNodeLocked) })
	here := run(t, "doctor", m.host, "-o", "json")
	require.Equal(t, schema.ExitFailed, here.code, here.stderr)
	report := decode[diagnosis.Report](t, here)
	identity := report.Faults()[0]
	require.Equal(t, "identity", identity.Name)
	require.Contains(t, identity.Next, "gpuaas node unlock "+m.host)

	require.Contains(t, m.try(agentDoctor+" --bundle doctor.tar.gz"), "gpuaas node show") // it exits with 1
	evidence := m.do("tar -xzOf doctor.tar.gz")
	require.Contains(t, evidence, "GPUAAS_ENROLLMENT_TOKEN=REDACTED")
	require.Contains(t, evidence, "enrollment succeeded", "the agent's log")
	require.Contains(t, evidence, "ActiveState=active")
	token := m.do(`sed -n 's/^GPUAAS_ENROLLMENT_TOKEN="*\([^"]*\).*/\1/p' /etc/gpuaas/node-agent.env`)
	require.NotEmpty(t, token)
	require.NotContains(t, evidence, token)

	file := filepath.Join(t.TempDir(), "evidence.zip")
	run(t, "doctor", m.host, "--bundle", file)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Positive(t, info.Size())
	ok(t, "node", "unlock", m.host, "--reason", "checked")
	eventually(t, "no fault is left", func() bool { return run(t, "doctor", m.host).code == schema.ExitDone })
}
