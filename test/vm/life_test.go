package vm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// TestMachines runs the lives of machines on one stack: one after the other if they kill the
// worker or count the domains, and the others in parallel. The machine of the first life boots over
// HTTP if iPXE is installed.
func TestMachines(t *testing.T) {
	s := newSite(t)
	t.Run("life", func(t *testing.T) {
		life(s.with(t))
		s.with(t).nothingLeft()
	})
	s.bootDirectly()
	for name, test := range map[string]func(*site){"terminate": terminated, "killed worker": killedWorker, "killed worker of MAAS": killedAtMAAS, "sweep": swept} {
		t.Run(name, func(t *testing.T) {
			test(s.with(t))
			s.with(t).nothingLeft()
		})
	}
	t.Run("in parallel", func(t *testing.T) {
		for name, test := range map[string]func(*site){"a machine that hangs": hangs, "life with MAAS": maasLife} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(s.with(t))
			})
		}
	})
	s.nothingLeft()
	s.run("audit", "--verify")
}

// life is the life of a virtual machine.
func life(s *site) {
	s.live("life", libvirt.Name, func(n wire.NodeView) {
		require.Equal(s.t, []string{"gpuaas-" + n.Instance.InstanceID}, s.domains())
		loaded := strings.Contains(s.console("life"), "/boot.ipxe... ok")
		require.Equal(s.t, s.netboots, loaded, "the machine boots over HTTP")
	})
}

// maasLife is the life of a machine of MAAS, whose user data contains the reference.
func maasLife(s *site) {
	s.live("bare", maas.Name, func(n wire.NodeView) {
		require.Equal(s.t, []string{n.Instance.ExternalID}, s.rack.guests.Running())
		require.Equal(s.t, []string{n.Instance.ExternalID}, s.rack.Used())
	})
	require.Empty(s.t, s.rack.left())
}

// live: a machine that did not exist is created, boots, enrolls and runs. A drain stops its
// workload, and a removal leaves nothing behind. exists checks the machine once it runs.
func (s *site) live(name, provider string, exists func(wire.NodeView)) {
	s.register(name, provider)
	s.run("node", "provision", name, "--wait")
	s.logPhases(name)
	n := s.node(name)
	require.Equal(s.t, lifecycle.NodeActive, n.State)
	require.Equal(s.t, lifecycle.InstanceRunning, n.Instance.State)
	exists(n)
	s.eventually("the workload starts", func() bool { return strings.Contains(s.console(name), "workload: started") })
	s.eventually("the node reports its workload", func() bool { return len(s.node(name).Workloads) == 1 })

	s.run("node", "drain", name, "--yes", "--reason", "test", "--wait")
	s.logPhases(name)
	require.Contains(s.t, s.console(name), "workload: stopped after")
	require.Equal(s.t, lifecycle.NodeDrained, s.node(name).State)

	s.run("node", "retire", name, "--yes", "--reason", "test", "--wait")
	s.run("node", "remove", name, "--yes", "--reason", "test", "--wait")
	s.logPhases(name)
	end := s.node(n.ID)
	require.Equal(s.t, lifecycle.NodeRemoved, end.State)
	require.Nil(s.t, end.Identity)
}

// terminated: a termination deletes a machine that works, and the node can be provisioned again.
func terminated(s *site) {
	s.register("again", libvirt.Name)
	s.run("node", "provision", "again", "--wait")
	first := s.node("again").Instance.InstanceID
	s.eventually("the node reports its workload", func() bool { return len(s.node("again").Workloads) == 1 })
	out, err := s.try("node", "terminate", "again", "--yes", "--reason", "test", "--wait")
	require.Error(s.t, err)
	require.Contains(s.t, out, "node_in_use")
	require.Len(s.t, s.domains(), 1)

	end := []string{"node", "terminate", "again", "--force", "--yes", "--reason", "test", "--wait"}
	s.run(end...)
	require.Empty(s.t, s.domains())
	n := s.node("again")
	require.Equal(s.t, lifecycle.NodeRegistered, n.State)
	require.Empty(s.t, n.Workloads)

	s.run("node", "provision", "again", "--wait")
	second := s.node("again").Instance.InstanceID
	require.NotEqual(s.t, first, second)
	require.Equal(s.t, []string{"gpuaas-" + second}, s.domains())
	all := s.run("instance", "list", "--node", "again", "-o", "json")
	require.Contains(s.t, all, first)
	require.Contains(s.t, all, second)
	s.run(end...)
	s.run("node", "remove", "again", "--yes", "--reason", "test", "--wait")
}

// killedWorker kills the worker before and after each command that changes a machine. There is
// one machine or none, and the operation completes with the next worker.
func killedWorker(s *site) {
	for i, verbs := range [][2]string{{"create", "destroy"}, {"define", "undefine"}} {
		for _, when := range []string{"before", "after"} {
			name := fmt.Sprintf("kill-%s-%d", when, i)
			s.register(name, libvirt.Name)
			s.killWorker(when, verbs[0])
			s.run("node", "provision", name, "--no-wait")
			s.awaitKill()
			s.startWorker()
			s.run("op", "watch", name)
			n := s.node(name)
			require.Equal(s.t, lifecycle.InstanceRunning, n.Instance.State, name)
			require.Equal(s.t, []string{"gpuaas-" + n.Instance.InstanceID}, s.domains(), name)
			s.run("node", "retire", name, "--drain", "--yes", "--reason", "test", "--wait")
			s.killWorker(when, verbs[1])
			s.run("node", "remove", name, "--yes", "--reason", "test", "--no-wait")
			s.awaitKill()
			s.startWorker()
			s.run("op", "watch", n.ID)
			require.Empty(s.t, s.domains(), name)
		}
	}
}

// hangs: of four machines, one hangs at boot. Three run, the fourth parks with its console, and
// a cancel deletes it.
func hangs(s *site) {
	const stuck = "hung"
	s.register(stuck, libvirt.Name)
	s.run("node", "provision", stuck, "--no-wait")
	s.eventually("the machine starts", func() bool { return strings.Contains(s.console(stuck), "gpuaas-init") })
	s.host.Virsh(s.t, "suspend", "gpuaas-"+s.node(stuck).Instance.InstanceID)
	create := []string{"node", "create", "good", "--count", "3", "--mode", "libvirt", "--sku", "vm", "--region", "local"}
	for range 2 { // the second command changes nothing
		s.run(create...)
	}
	require.Len(s.t, s.domains(), 4)
	s.eventually("the fourth operation parks", func() bool { return s.operation(stuck).Operation.Status == lifecycle.OperationParked })
	reason := s.operation(stuck).Operation.Stuck
	s.t.Log(reason.Message, reason.Cause)
	require.Equal(s.t, lifecycle.PhaseEnroll, reason.Phase)
	require.Equal(s.t, lifecycle.ReasonMachineSilent, reason.Reason)
	require.Contains(s.t, reason.Cause, "the machine is failed: ")
	require.Contains(s.t, reason.Cause, "; its console ends with: ")
	require.Contains(s.t, reason.Cause, "gpuaas-init")
	s.run("op", "cancel", stuck, "--yes", "--reason", "test", "--wait")
	require.Len(s.t, s.domains(), 3)
	s.run("node", "remove", stuck, "--yes", "--reason", "test", "--wait")
	for _, name := range []string{"good-1", "good-2", "good-3"} {
		require.Equal(s.t, lifecycle.InstanceRunning, s.node(name).Instance.State)
		s.run("node", "retire", name, "--drain", "--yes", "--reason", "test", "--wait")
		s.run("node", "remove", name, "--yes", "--reason", "test", "--wait")
	}
}
