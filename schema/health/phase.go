package health

import (
	"slices"

	"github.com/gpuaas/gpuaas/schema"
)

// phaseNames returns the names of the phases, by their number.
func phaseNames() []string {
	return []string{"Unknown", "Healthy", "Unhealthy", "WaitingReboot", "Drain", "Replace"}
}

// Phases returns every phase, in the order in which a repair goes through them.
func Phases() []Phase {
	return []Phase{PhaseUnknown, PhaseHealthy, PhaseUnhealthy, PhaseWaitingReboot, PhaseDrain, PhaseReplace}
}

// String returns the name of the phase, for example "WaitingReboot". It is also the text in JSON,
// in the database and in the labels of metrics.
func (p Phase) String() string {
	if names := phaseNames(); p >= 0 && int(p) < len(names) {
		return names[p]
	}
	return "Invalid"
}

// ParsePhase returns the phase with the name. An unknown name is KindInvalidRequest.
func ParsePhase(name string) (Phase, error) {
	i := slices.Index(phaseNames(), name)
	if i < 0 {
		return PhaseUnknown, schema.NewError(schema.KindInvalidRequest, "unknown phase %.40q", name).WithReason("unknown_phase")
	}
	return Phase(i), nil
}

// MarshalText returns the name of the phase.
func (p Phase) MarshalText() ([]byte, error) {
	if _, err := ParsePhase(p.String()); err != nil {
		return nil, schema.NewError(schema.KindInternal, "phase %d has no name", int(p))
	}
	return []byte(p.String()), nil
}

// UnmarshalText sets the phase from its name. An unknown name is an error.
func (p *Phase) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePhase(string(text))
	return err
}
