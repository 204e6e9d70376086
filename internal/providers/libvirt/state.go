package libvirt

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// state is a domain's state and the reason for it: libvirt's virDomainState and the enum of
// reasons of that state.
type state struct{ state, reason int }

// The states, and the reasons that matter.
const (
	stateNone        = 0
	stateRunning     = 1
	stateBlocked     = 2
	statePaused      = 3
	stateShutdown    = 4 // the guest is switching itself off
	stateOff         = 5
	stateCrashed     = 6
	stateSuspended   = 7
	pausedMigration  = 2
	pausedSnapshot   = 9
	pausedStartingUp = 11
	offDestroyed     = 2
	offCrashed       = 3
	offFailed        = 6
)

// active reports whether the domain has a process.
func (s state) active() bool { return s.state != stateOff }

// starting reports whether QEMU has not finished reading its files.
func (s state) starting() bool {
	return s.state == stateNone || s.state == statePaused && s.reason == pausedStartingUp
}

// phase returns the machine's phase and the state in words.
func (s state) phase() (machine.Phase, string) {
	switch s.state {
	case stateNone:
		return machine.Creating, "no state"
	case stateRunning, stateBlocked:
		return machine.Running, "running"
	case statePaused:
		return s.paused()
	case stateShutdown:
		return machine.Running, "in shutdown"
	case stateOff:
		if s.reason == offCrashed || s.reason == offFailed {
			return machine.Failed, fmt.Sprintf("shut off after a crash (reason %d)", s.reason)
		}
		return machine.Stopped, "shut off"
	case stateCrashed:
		return machine.Failed, "crashed"
	case stateSuspended:
		return machine.Stopped, "suspended"
	}
	return machine.Failed, fmt.Sprintf("unknown state %d", s.state)
}

// paused returns the phase of a paused domain. libvirt continues one that it paused for a
// migration, a dump or a snapshot; another one stays paused without help.
func (s state) paused() (machine.Phase, string) {
	switch {
	case s.reason == pausedStartingUp:
		return machine.Creating, "starting"
	case s.reason >= pausedMigration && s.reason <= pausedSnapshot && s.reason != pausedIOError && s.reason != pausedWatchdog:
		return machine.Running, fmt.Sprintf("paused by libvirt (reason %d)", s.reason)
	}
	return machine.Failed, fmt.Sprintf("paused (reason %d)", s.reason)
}

const (
	pausedIOError  = 5
	pausedWatchdog = 6
)

// domain is a domain with its state.
type domain struct {
	domainXML
	state
}

// machine returns what the provider reports about one of its domains.
func (d domain) machine() machine.Machine {
	tag := d.Metadata.Tag
	m := machine.Machine{
		Ref:  machine.Ref{InstanceID: tag.Instance, ExternalID: d.UUID, Host: tag.Host, Region: tag.Region},
		Type: tag.Type,
	}
	m.Phase, m.Detail = d.phase()
	if at, err := time.Parse(time.RFC3339, tag.CreatedAt); err == nil {
		m.CreatedAt = at
	}
	return m
}
