package health

import (
	"encoding/json"
	"time"
)

// The times that a node has to become healthy after a reboot. Nodes with GPUs load drivers, start
// the fabric manager and discover devices.
const (
	StandardRebootWait = 10 * time.Minute
	GPURebootWait      = 40 * time.Minute
)

// RebootWait returns how long a node has to become healthy after a reboot.
func RebootWait(gpu bool) time.Duration {
	if gpu {
		return GPURebootWait
	}
	return StandardRebootWait
}

// State is where one node is in its recovery. Only a StateStore changes it. The zero value is that of
// a node that was never checked. Its JSON form is what a store keeps over a restart.
type State struct{ f stateFields }

// stateFields is the JSON form of a State.
type stateFields struct {
	Node           string    `json:"node"`
	Phase          Phase     `json:"phase"`
	Since          time.Time `json:"since"`
	UnhealthySince time.Time `json:"unhealthy_since,omitzero"`
	Reboots        int       `json:"reboots,omitempty"`
	RebootedAt     time.Time `json:"rebooted_at,omitzero"`
	RebootUntil    time.Time `json:"reboot_until,omitzero"`
	DrainUntil     time.Time `json:"drain_until,omitzero"`
	RefusedAt      time.Time `json:"refused_at,omitzero"`
}

// Node returns the node's name.
func (s State) Node() string { return s.f.Node }

// Phase returns the phase.
func (s State) Phase() Phase { return s.f.Phase }

// Since returns when the phase began.
func (s State) Since() time.Time { return s.f.Since }

// UnhealthySince returns when the node became unhealthy; zero while it is healthy.
func (s State) UnhealthySince() time.Time { return s.f.UnhealthySince }

// Reboots returns how often the node was rebooted since it was last healthy: a healthy phase
// that begins within the time of a reboot does not count yet.
func (s State) Reboots() int { return s.f.Reboots }

// RebootedAt returns when the last reboot was requested; zero if Reboots is 0.
func (s State) RebootedAt() time.Time { return s.f.RebootedAt }

// Deadline returns until when the node has time in PhaseWaitingReboot or PhaseDrain, otherwise zero.
func (s State) Deadline() time.Time {
	switch s.f.Phase {
	case PhaseWaitingReboot:
		return s.f.RebootUntil
	case PhaseDrain:
		return s.f.DrainUntil
	}
	return time.Time{}
}

// RefusedAt returns when a reboot was refused last, which did not count; zero if none was.
func (s State) RefusedAt() time.Time { return s.f.RefusedAt }

// Expired reports whether the time of the phase has passed.
func (s State) Expired(at time.Time) bool { return !s.Deadline().IsZero() && !at.Before(s.Deadline()) }

// CanRepair reports whether a reboot or a drain may start: the node has a fault, and the time of its
// last reboot has passed.
func (s State) CanRepair(at time.Time) bool {
	faulty := s.f.Phase == PhaseUnhealthy || s.f.Phase == PhaseWaitingReboot
	return faulty && !at.Before(s.f.RebootUntil)
}

// MarshalJSON encodes the state for a store.
func (s State) MarshalJSON() ([]byte, error) { return json.Marshal(s.f) }

// UnmarshalJSON decodes a stored state. An unknown phase is an error.
func (s *State) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &s.f) }
