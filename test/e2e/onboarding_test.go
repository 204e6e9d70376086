package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

const onboarding = "docs/onboarding.md"

// TestOnboardingSteps types the blocks of docs/onboarding.md against a host with a real
// systemd: the five steps, a second installation, a correction before the enrollment, the script
// over HTTP, and both reissues. It then makes the checks of the acceptance test.
func TestOnboardingSteps(t *testing.T) {
	m := newSystemdMachine(t, host(t, "steps"))
	m.fakeGPUs()
	d := newTerminal(t, m)
	steps := blocks(t, onboarding, "## Five steps")
	require.Len(t, steps, 7)
	d.types(steps[0], "gpu-17", m.host)
	require.Equal(t, lifecycle.NodeActive, show(t, m.host).State)
	again, err := d.typed("ssh root@gpu-17 sh < gpu-17.sh", "gpu-17", m.host)
	require.Error(t, err)
	require.Contains(t, err.Error(), "exit status 3", again)

	first := show(t, m.host).Identity.Serial
	d.types(steps[1], "gpu-17", m.host)
	ok(t, "op", "watch", m.host, "--reissue")
	second := show(t, m.host).Identity.Serial
	require.NotEqual(t, first, second)

	wrong := host(t, "wrong")
	ok(t, "node", "register", wrong, "--sku", "h100", "--region", "fra1")
	d.types(strings.SplitAfter(steps[2], "\n")[0], "gpu-17", wrong)
	n := show(t, wrong)
	require.Equal(t, []string{"a100", "fra2"}, []string{n.SKU, n.RegionCode})
	d.types(steps[3], "gpu-17", wrong)
	script, err := os.ReadFile(filepath.Join(d.dir, wrong+".sh"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(script), "#!/bin/sh"))
	ok(t, "op", "cancel", wrong, "--reason", "test")
	eventually(t, "the enrollment ends", func() bool { return show(t, wrong).Operation == nil })
	d.types(strings.SplitAfter(steps[2], "\n")[1], "gpu-17", wrong)
	waitFor(t, wrong, lifecycle.NodeRemoved)

	reissue := blocks(t, onboarding, "### Reissue")
	require.Len(t, reissue, 2)
	for _, b := range reissue {
		before := show(t, m.host).Identity.Serial
		d.types(b, "gpu-17", m.host, "gpu-*", m.host)
		ok(t, "op", "watch", m.host, "--reissue")
		require.NotEqual(t, before, show(t, m.host).Identity.Serial)
	}
	answer := m.do(`. /etc/gpuaas/node-agent.env; curl -s --cacert /etc/gpuaas/ca-bundle.crt $GPUAAS_API_URL/internal/v1/nodes/$GPUAAS_NODE_ID/tasks/wait`)
	require.Contains(t, answer, "invalid_node_identity")
}

// TestOnboardingWithoutTheScript types the blocks for cloud-init and for an installation from
// the bundle.
func TestOnboardingWithoutTheScript(t *testing.T) {
	t.Parallel()
	cloud, bare := newSystemdMachine(t, host(t, "cloud")), newSystemdMachine(t, host(t, "bare"))
	d := newTerminal(t, cloud, bare)
	steps := blocks(t, onboarding, "## Five steps")[4:]
	for _, m := range []*systemdMachine{cloud, bare} {
		m.fakeGPUs()
		ok(t, "node", "register", m.host, "--sku", "h100", "--region", "fra1")
	}
	d.types(steps[0], "gpu-17", cloud.host)
	d.types("ssh root@gpu-17 sh < user-data.sh", "gpu-17", cloud.host)
	waitFor(t, cloud.host, lifecycle.NodeActive)
	second, err := d.typed("ssh root@gpu-17 sh < user-data.sh", "gpu-17", bare.host)
	require.Error(t, err, "the reference is used up: %s", second)

	pkg, err := os.ReadFile(filepath.Join(filepath.Dir(shared.Bin), "gpuaas-node-agent.tar.gz"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, "gpuaas-node-agent.tar.gz"), pkg, 0o600))
	d.types(steps[1], "gpu-17", bare.host)
	bare.do(strings.ReplaceAll(steps[2], "gpu-17", bare.host))
	waitFor(t, bare.host, lifecycle.NodeActive)
	require.Empty(t, bare.try("ls "+bare.host+".json "+bare.host+".env 2>/dev/null"))
}
