package rotation

import (
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Target is what the verifier set of a phase contains.
type Target struct {
	// States are the states of the task keys by ID. Keys that are not listed are dropped,
	// unless they are revoked.
	States map[string]trust.KeyState
	// Roots are the IDs of the root keys that nodes trust after the set; empty keeps those
	// of the predecessor.
	Roots []string
	// SignedBy is the ID of the root key that signs the set; empty for the predecessor's.
	SignedBy string
	// Revokes is set if the set starts an epoch: nodes accept it although the key that
	// signed its predecessor does not sign it.
	Revokes bool
}

// Active returns the ID of the task key that signs tasks after the set.
func (t Target) Active() string {
	for id, state := range t.States {
		if state == trust.KeyActive {
			return id
		}
	}
	return ""
}

// Revoked returns the task key that the set revokes, "" if it begins no epoch.
func (t Target) Revoked() string {
	for id, state := range t.States {
		if t.Revokes && state == trust.KeyRevoked {
			return id
		}
	}
	return ""
}

// Target returns the set of the current phase. The second result is false for a phase
// that publishes none.
func (r Rotation) Target(active string) (Target, bool) {
	switch r.Kind {
	case SetRoot:
		return r.rootTarget(active)
	case NodeCA:
		return Target{}, false
	case TaskKey, RevokeKey:
	}
	states := map[Phase]map[string]trust.KeyState{
		Stage:    {r.OldKey: trust.KeyActive, r.NewKey: trust.KeyStaged},
		Activate: {r.NewKey: trust.KeyActive, r.OldKey: trust.KeyGrace},
		Retire:   {r.NewKey: trust.KeyActive},
		Restore:  {r.OldKey: trust.KeyActive, r.NewKey: trust.KeyGrace},
		Remove:   {r.OldKey: trust.KeyActive},
		Revoke:   {r.OldKey: trust.KeyRevoked, r.NewKey: trust.KeyActive},
	}[r.Phase]
	return Target{States: states, Revokes: r.Phase == Revoke}, states != nil
}

// rootTarget is Target for the root key: active is the task key of the newest set.
func (r Rotation) rootTarget(active string) (Target, bool) {
	t := Target{States: map[string]trust.KeyState{active: trust.KeyActive}, SignedBy: r.OldKey}
	switch r.Phase {
	case Stage, Restore:
		t.Roots = []string{r.OldKey, r.NewKey}
	case Activate:
		t.Roots, t.SignedBy = []string{r.OldKey, r.NewKey}, r.NewKey
	case Retire:
		t.Roots, t.SignedBy = []string{r.NewKey}, r.NewKey
	case Remove:
		t.Roots = []string{r.OldKey}
	default:
		return Target{}, false
	}
	return t, true
}
