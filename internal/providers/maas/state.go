package maas

import (
	"cmp"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// The statuses of machines that the adapter distinguishes (NodeStatus in src/maascommon/enums/node.py of canonical/maas).
const (
	statusNew                = 0
	statusReady              = 4
	statusReserved           = 5
	statusDeployed           = 6
	statusDeploying          = 9
	statusAllocated          = 10
	statusReleasing          = 12
	statusDiskErasing        = 14
	statusRescueMode         = 16
	statusEnteringRescueMode = 17
	statusExitingRescueMode  = 19
	statusTesting            = 21
)

// powerOff is a value of power_state. The others are on, unknown and error.
const powerOff = "off"

// phase returns what the machine does. A deployed machine whose power cannot be read counts as
// running: its agent shows whether it is.
func (n node) phase() machine.Phase {
	switch n.Status {
	case statusAllocated, statusReserved, statusDeploying:
		return machine.Creating
	case statusDeployed, statusTesting:
		if n.PowerState == powerOff {
			return machine.Stopped
		}
		return machine.Running
	case statusReleasing, statusDiskErasing:
		return machine.Deleting
	case statusRescueMode, statusEnteringRescueMode, statusExitingRescueMode:
		return machine.Stopped // its system does not run
	default:
		return machine.Failed
	}
}

// free reports whether the machine is no instance's: a release ends with status Ready, or New
// for a machine that was never commissioned.
func (n node) free() bool {
	return n.Owner == "" || n.Status == statusReady || n.Status == statusNew
}

// machine returns the machine of an instance.
func (a *account) machine(n node, host string) machine.Machine {
	detail := n.StatusName
	if more := cmp.Or(n.StatusMessage, n.Broken); more != "" {
		detail += ": " + more
	}
	m := machine.Machine{Phase: n.phase(), Detail: a.client.line(detail)}
	m.Ref = machine.Ref{InstanceID: n.instance, ExternalID: n.SystemID, Host: cmp.Or(host, n.Hostname), Region: n.Zone.Name}
	return m
}
