package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// The releases of the test. Their versions are above every version that the suite is built as.
const (
	nextAgent    = "v99.0.0"
	crashedAgent = "v99.1.0"
)

// signAgent signs a file as a release of the agent, which the API then offers.
func signAgent(t *testing.T, binary, version string) {
	t.Helper()
	ok(t, "admin", "sign-agent", binary, "--version", version, "--arch", runtime.GOARCH, "--key", filepath.Join(shared.Dir, "secrets", "release-key.pem"),
		"--to", filepath.Join(shared.Dir, "releases"))
}

// buildRelease builds a program of cmd as a version, and signs it.
func buildRelease(t *testing.T, program, version string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), program)
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-trimpath", "-o", bin,
		"-ldflags", "-s -w -X github.com/gpuaas/gpuaas/schema/version.version="+version, "../../cmd/"+program)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	signAgent(t, bin, version)
}

// TestUpgradeAgent upgrades the agent of a host with a real systemd: to a release that works,
// and to one that crashes, after which the one before runs again in the same hardened unit.
func TestUpgradeAgent(t *testing.T) {
	m := newSystemdMachine(t, host(t, "upgraded"))
	ok(t, "node", "register", m.host, "--sku", "cpu-dev", "--region", "region-1", "--workload-driver", "none")
	newTerminal(t, m).types("gpuaas node bootstrap-script " + m.host + " | ssh root@" + m.host + " sh\n")
	n := waitFor(t, m.host, lifecycle.NodeActive)
	require.NotEqual(t, nextAgent, n.AgentVersion)

	buildRelease(t, "gpuaas-node-agent", nextAgent)
	pid := m.do("systemctl show -P MainPID gpuaas-node-agent")
	require.Equal(t, lifecycle.OperationCompleted, act(t, "node", "upgrade-agent", m.host, "--version", nextAgent).Operation.Status)
	eventually(t, "the new version is in the heartbeat", func() bool { return show(t, m.host).AgentVersion == nextAgent })
	require.Equal(t, pid, m.do("systemctl show -P MainPID gpuaas-node-agent"), "the unit was not restarted")
	require.Equal(t, "0", m.do("systemctl show -P NRestarts gpuaas-node-agent"))
	m.do("systemctl restart gpuaas-node-agent")
	eventually(t, "it survives a restart", func() bool {
		return strings.Contains(m.try("gpuaas=/opt/gpuaas/node-agent/bin/gpuaas-node-agent; GPUAAS_NODE_AGENT_ENV_FILE=/etc/gpuaas/node-agent.env $gpuaas status -o json"), `"version": "`+nextAgent+`"`)
	})

	crash := filepath.Join(t.TempDir(), "crash")
	script := "#!/bin/sh\n[ \"$1\" != version ] || { echo gpuaas-node-agent " + crashedAgent + "; exit; }\nexit 1\n"
	require.NoError(t, os.WriteFile(crash, []byte(script), 0o600))
	signAgent(t, crash, crashedAgent)
	r := run(t, "node", "upgrade-agent", m.host, "--version", crashedAgent)
	require.Equal(t, schema.ExitPending, r.code, r.stdout+r.stderr)
	stuck := parkedFor(t, m.host, lifecycle.ReasonUpgradeRolledBack)
	require.Contains(t, stuck.Message, crashedAgent+": it was started 3 times")
	require.NotEmpty(t, stuck.Next)
	require.Equal(t, nextAgent, show(t, m.host).AgentVersion)
	ok(t, "op", "cancel", m.host, "--reason", "the release crashes")

	refused := run(t, "node", "upgrade-agent", m.host, "--version", "v99.9.9")
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, nextAgent, "the error names the releases that there are")
	waitFor(t, m.host, lifecycle.NodeActive)
}
