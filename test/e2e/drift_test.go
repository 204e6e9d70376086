package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/template"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// The releases of the test. Their versions are below those of TestUpgradeAgent.
const (
	driftedAgent  = "v97.0.0"
	declaredAgent = "v98.0.0"
)

// driftOf compares a node with its template.
func driftOf(t *testing.T, host string) template.Report {
	t.Helper()
	return decode[template.Report](t, ok(t, "node", "drift", host, "-o", "json"))
}

// declare stores a template that only nodes with its label have.
func declare(t *testing.T, name, file string, policy template.Policy) {
	t.Helper()
	sum := sha256.Sum256([]byte(file))
	path := filepath.Join(t.TempDir(), "template.yaml")
	document := fmt.Sprintf("artifacts: {agent: %s, probe: \"%s\"}\npolicy: %s\n", declaredAgent, hex.EncodeToString(sum[:]), policy)
	require.NoError(t, os.WriteFile(path, []byte(document), 0o600))
	ok(t, "template", "set", name, "--file", path)
}

// updates are the names of the artifacts that a node has in another version.
func updates(r template.Report) string {
	var names []string
	for _, x := range r.Update {
		names = append(names, x.Name)
	}
	return strings.Join(names, " ")
}

// TestDriftIsCorrected: a real agent that is older than declared, with a file of another digest, is a drift with a
// signal. Nothing is started until the policy says so; then the agent is upgraded, once, and the drift ends.
func TestDriftIsCorrected(t *testing.T) {
	m := newSystemdMachine(t, host(t, "drifting"))
	ok(t, "node", "register", m.host, "--sku", "cpu-dev", "--region", "region-1", "--workload-driver", "none")
	newTerminal(t, m).types("gpuaas node bootstrap-script " + m.host + " | ssh root@" + m.host + " sh\n")
	waitFor(t, m.host, lifecycle.NodeActive)
	buildRelease(t, "gpuaas-node-agent", driftedAgent)
	buildRelease(t, "gpuaas-node-agent", declaredAgent)
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "upgrade-agent", m.host, "--version", driftedAgent).Operation.Status)
	m.do("echo other > /etc/probe; echo GPUAAS_ARTIFACTS=/etc/probe=probe >> /etc/gpuaas/node-agent.env; systemctl restart gpuaas-node-agent")

	declare(t, m.host, "right\n", template.PolicyNotify)
	t.Cleanup(func() { ok(t, "template", "delete", m.host, "--yes") })
	ok(t, "node", "set", m.host, "--label", template.Label+"="+m.host)
	eventually(t, "both differences are reported", func() bool { return updates(driftOf(t, m.host)) == "agent probe" })
	require.Equal(t, declaredAgent, driftOf(t, m.host).Upgrade, "what the policy would start")
	signals := func(detail string) func() bool {
		return func() bool {
			return strings.Contains(ok(t, "node", "signals", m.host, "--type", "instance.drift").stdout, detail)
		}
	}
	triggerSchedule(t, lifecycle.ScheduleDrift)
	eventually(t, "a signal", signals("differs from template "+m.host+" version 1: update agent probe"))
	require.Contains(t, ok(t, "template", "drift").stdout, m.host)
	require.Contains(t, ok(t, "node", "show", m.host).stdout, "drifted: update agent probe")

	m.do("echo right > /etc/probe; systemctl restart gpuaas-node-agent")
	eventually(t, "the file is as declared", func() bool { return updates(driftOf(t, m.host)) == "agent" })
	declare(t, m.host, "right\n", template.PolicyProceed)
	ok(t, "node", "quarantine", m.host, "--reason", "an operator works on it")
	triggerSchedule(t, lifecycle.ScheduleDrift)
	eventually(t, "the scan", signals("version 2: update agent"))
	require.Empty(t, driftOf(t, m.host).Remedy, "the policy notify started nothing, and a quarantined node is left alone")
	ok(t, "node", "release", m.host, "--reason", "done")
	waitFor(t, m.host, lifecycle.NodeActive)
	triggerSchedule(t, lifecycle.ScheduleDrift)
	eventually(t, "the agent is upgraded", func() bool { return show(t, m.host).AgentVersion == declaredAgent })
	eventually(t, "nothing differs", func() bool { return driftOf(t, m.host).Status == template.StatusInSync })
	triggerSchedule(t, lifecycle.ScheduleDrift)
	eventually(t, "a signal of its end", signals("matches template "+m.host+" version 2 again"))

	list := decode[wire.OperationList](t, ok(t, "op", "list", "--node", m.host, "--action", "upgrade-agent", "-o", "json"))
	require.Len(t, list.Operations, 2)
	require.Equal(t, "system differs from template "+m.host+" version 2", list.Operations[0].Actor+" "+list.Operations[0].Reason)
	require.Equal(t, lifecycle.OperationCompleted, list.Operations[0].Status)
}
