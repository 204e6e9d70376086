package vm

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema/evidence"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// productImage is the image with the product agent, which really restarts its machine.
const productImage = "../../bin/vm-image"

// booted is the end of what the init of the image prints first.
const booted = " s: started"

// TestRecover repairs virtual machines. They have no disk, so a restarted one has lost its identity:
// the reboot is real, and the next rung follows.
func TestRecover(t *testing.T) {
	s := newSiteOf(t, productImage)
	s.bootDirectly()
	t.Run("replace", func(t *testing.T) { replaced(s.with(t)) })
	t.Run("quarantine", func(t *testing.T) { quarantined(s.with(t)) })
	s.nothingLeft()
	s.run("audit", "--verify")
}

// boots counts the boots of the node's machine.
func (s *site) boots(name string) int { return strings.Count(s.console(name), booted) }

// replaced: the machine restarts once and does not return. Another one replaces it, enrolls, and
// passes its tests.
func replaced(s *site) {
	s.register("sick", libvirt.Name)
	s.run("node", "provision", "sick", "--wait")
	before := s.node("sick")
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
