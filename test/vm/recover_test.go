package vm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/signal"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// productImage is the image with the product agent, which really restarts its machine.
const productImage = "../../bin/vm-image"

// booted is the end of what the init of the image prints first.
const booted = " s: started"

// TestRecover repairs virtual machines, which really restart. Health recovery repairs one, which
// returns. The others lose their disks before, and so do not return: the next rung follows.
func TestRecover(t *testing.T) {
	s := newSiteOf(t, productImage)
	s.bootDirectly()
	t.Run("return", func(t *testing.T) { returned(s.with(t)) })
	t.Run("replace", func(t *testing.T) { replaced(s.with(t)) })
	t.Run("quarantine", func(t *testing.T) { quarantined(s.with(t)) })
	s.nothingLeft()
	s.run("audit", "--verify")
}

// boots counts the boots of the node's machine.
func (s *site) boots(name string) int { return strings.Count(s.console(name), booted) }

// loseDisk makes the disk of the node's machine an empty one.
func (s *site) loseDisk(name string) {
	s.t.Helper()
	path := filepath.Join(s.state, "disks", s.node(name).Instance.InstanceID+".img")
	info, err := os.Stat(path)
	require.NoError(s.t, err)
	require.NoError(s.t, os.Truncate(path, 0))
	require.NoError(s.t, os.Truncate(path, info.Size()))
}

// returned: a device of the machine reports a fatal error. The agent finds it in the kernel log, health
// recovery restarts the machine once, and it returns as the same node, with the same certificate and
// without the fault. It also returns after it was switched off, when its provider passes no boot
// document.
func returned(s *site) {
	s.register("back", libvirt.Name)
	s.run("node", "provision", "back", "--wait")
	before := s.node("back")
	domain := "gpuaas-" + before.Instance.InstanceID
	s.arm("back")
	s.breakPort(domain)
	var op lifecycle.Operation
	require.Eventually(s.t, func() bool {
		op = s.operation("back").Operation
		return op.Action == lifecycle.ActionRecover && op.Status.Ended()
	}, operationTimeout, conditionEvery, "health recovery repairs the node")
	s.run("recovery", "disarm", "--reason", "test")
	s.logPhases("back")
	require.Equal(s.t, "repaired by the rung reboot", op.Outcome)
	var counted struct{ Outcomes []recovery.OutcomeCount }
	require.NoError(s.t, json.Unmarshal([]byte(s.run("recovery", "outcomes", "-o", "json")), &counted))
	require.Len(s.t, counted.Outcomes, 1)
	require.Equal(s.t, "host_kernel", counted.Outcomes[0].Checker)
	require.Equal(s.t, 1, counted.Outcomes[0].Cured)
	after := s.node("back")
	require.Equal(s.t, 2, s.boots("back"), "the machine restarts once")
	s.sameNode(before, after)
	require.NotEqual(s.t, before.BootID, after.BootID)
	s.eventually("the fault has ended", func() bool {
		return !slices.ContainsFunc(s.node("back").Conditions, func(c signal.Condition) bool { return c.Status == health.Unhealthy })
	})

	s.host.Virsh(s.t, "destroy", domain)
	s.host.Virsh(s.t, "start", domain)
	s.eventually("the node reports its third boot", func() bool { return s.node("back").BootID != after.BootID })
	require.Equal(s.t, 3, s.boots("back"))
	s.sameNode(before, s.node("back"))
	require.Equal(s.t, 1, strings.Count(s.console("back"), "bundle received"), "the machine enrolls once")

	s.run("node", "terminate", "back", "--force", "--yes", "--reason", "test", "--wait")
	s.run("node", "remove", "back", "--yes", "--reason", "test", "--wait")
	require.Empty(s.t, s.left())
}

// arm makes health recovery repair the node at once.
func (s *site) arm(name string) {
	s.t.Helper()
	p := recovery.Default()
	p.Mode, p.Samples, p.BootGrace, p.Cooldown = recovery.ModeArmed, 1, 0, 0
	p.Ladders = []recovery.Ladder{{Match: recovery.Match{Hosts: []string{name}}, Rungs: []recovery.Rung{recovery.RungReboot, recovery.RungQuarantine}}}
	p.Budgets = []recovery.Budget{{Scope: recovery.ScopeFleet, Count: 1, Percent: 100}}
	p.Breaker.Nodes, p.Breaker.Percent, p.Suspect.Percent = 1000, 100, 100
	raw, err := json.Marshal(p)
	require.NoError(s.t, err)
	file := filepath.Join(s.t.TempDir(), "policy.json")
	require.NoError(s.t, os.WriteFile(file, raw, 0o600))
	s.run("recovery", "policy", "set", "--file", file, "--reason", "test")
}

// breakPort makes a PCIe port of the domain report a fatal error. No device uses the last port, which
// libvirt adds for a device that is added later.
func (s *site) breakPort(domain string) {
	s.t.Helper()
	ports := regexp.MustCompile(`<alias name='(pci\.\d+)'/>`).FindAllStringSubmatch(s.host.Virsh(s.t, "dumpxml", domain), -1)
	require.NotEmpty(s.t, ports)
	s.host.Virsh(s.t, "qemu-monitor-command", domain, "--hmp", "pcie_aer_inject_error "+ports[len(ports)-1][1]+" DLP")
}

// sameNode requires that the node be active with the same machine and the same identity.
func (s *site) sameNode(before, after wire.NodeView) {
	s.t.Helper()
	require.Equal(s.t, lifecycle.NodeActive, after.State)
	require.Equal(s.t, lifecycle.InstanceRunning, after.Instance.State)
	require.Equal(s.t, before.Instance.InstanceID, after.Instance.InstanceID)
	require.Equal(s.t, before.Incarnation, after.Incarnation)
	require.Equal(s.t, before.Identity, after.Identity)
	require.Equal(s.t, []string{"gpuaas-" + before.Instance.InstanceID}, s.domains())
}

// replaced: the machine restarts once and does not return. Another one replaces it, enrolls, and
// passes its tests.
func replaced(s *site) {
	s.register("sick", libvirt.Name)
	s.run("node", "provision", "sick", "--wait")
	before := s.node("sick")
	s.loseDisk("sick")
	s.run("node", "recover", "sick", "--rung", "reboot,replace,quarantine", "--reboot-wait", "1m", "--yes", "--reason", "test", "--wait")
	s.logPhases("sick")
	op := s.operation("sick").Operation
	require.Equal(s.t, "repaired by the rung replace", op.Outcome)
	after := s.node("sick")
	require.Equal(s.t, lifecycle.NodeActive, after.State)
	require.Equal(s.t, lifecycle.InstanceRunning, after.Instance.State)
	require.NotEqual(s.t, before.Instance.InstanceID, after.Instance.InstanceID)
	require.NotEqual(s.t, before.BootID, after.BootID)
	require.Equal(s.t, []string{"gpuaas-" + after.Instance.InstanceID}, s.domains())
	s.run("node", "terminate", "sick", "--force", "--yes", "--reason", "test", "--wait")
	s.run("node", "remove", "sick", "--yes", "--reason", "test", "--wait")
}

// quarantined: the machine restarts exactly once, and the node is quarantined with its evidence.
func quarantined(s *site) {
	s.register("worse", libvirt.Name)
	s.run("node", "provision", "worse", "--wait")
	require.Equal(s.t, 1, s.boots("worse"))
	s.loseDisk("worse")
	s.run("node", "recover", "worse", "--reboot-wait", "1m", "--yes", "--reason", "test", "--wait")
	s.logPhases("worse")
	s.eventually("the machine has restarted", func() bool { return s.boots("worse") >= 2 })
	require.Equal(s.t, 2, s.boots("worse"), "the machine restarts once")
	n := s.node("worse")
	require.Equal(s.t, lifecycle.NodeQuarantined, n.State)
	var b evidence.Bundle
	require.NoError(s.t, json.Unmarshal([]byte(s.run("node", "rma", "worse", "-o", "json")), &b))
	require.Equal(s.t, n.Instance.InstanceID, b.InstanceID)
	require.Len(s.t, b.Attempts, 1)
	require.Equal(s.t, recovery.RungReboot, b.Attempts[0].Rung)
	require.Equal(s.t, "failed", b.Attempts[0].Outcome)
	require.NotEmpty(s.t, b.Attempts[0].BootBefore)
	require.NotNil(s.t, b.Facts)
	s.run("node", "terminate", "worse", "--force", "--yes", "--reason", "test", "--wait")
	s.run("node", "remove", "worse", "--yes", "--reason", "test", "--wait")
}
