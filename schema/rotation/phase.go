package rotation

import (
	"slices"
)

// Kind is what a rotation replaces.
type Kind string

// The kinds of rotations.
const (
	TaskKey Kind = "task-key" // the key that signs tasks
	SetRoot Kind = "set-root" // the root key, which signs verifier sets
	NodeCA  Kind = "node-ca"  // the CA of node certificates
	// RevokeKey ends the validity of a task key at once, without the phases that prepare
	// nodes for it.
	RevokeKey Kind = "revoke-key"
)

// Kinds returns the kinds that an operator starts with gpuaas rotate.
func Kinds() []Kind { return []Kind{TaskKey, SetRoot, NodeCA} }

// Phase is the name of a phase of a rotation.
type Phase string

// The phases. Restore and Remove undo a rotation.
const (
	Stage    Phase = "stage"
	Activate Phase = "activate"
	Grace    Phase = "grace"
	Retire   Phase = "retire"
	Restore  Phase = "restore"
	Remove   Phase = "remove"
	Revoke   Phase = "revoke"
)

// Outcome is how a rotation ended.
type Outcome string

// The outcomes.
const (
	Completed  Outcome = "completed"
	RolledBack Outcome = "rolled_back"
	Superseded Outcome = "superseded" // by a revocation
)

// PhaseSpec is what a phase does and what must be true before the rotation leaves it.
type PhaseSpec struct {
	Name Phase `json:"name"`
	// Does is what the phase does, in the imperative.
	Does string `json:"does"`
	// Confirm is set if every node must confirm the phase: it reports the phase's verifier
	// set, or its CA bundle, or uses a certificate of the CA that issues in the phase.
	Confirm bool `json:"confirm"`
	// Reload is set if every replica of the node API must report that it accepts the CAs of
	// the phase. Nodes are asked to load the bundle after that.
	Reload bool `json:"reload,omitempty"`
	// Drain is set if no open task may be signed with the key that the phase replaces.
	Drain bool `json:"drain"`
	// Wait is set if the rotation's grace period must be over.
	Wait bool `json:"wait"`
	// Approve is set if an operator must approve the next phase, which cannot be undone.
	Approve bool `json:"approve"`
	// Next is the following phase, empty in the last one. Back is the phase with which a
	// rollback begins, empty if the phase cannot be undone.
	Next Phase `json:"next,omitempty"`
	Back Phase `json:"back,omitempty"`
}

// Phases returns the phases of a kind in order, without those of a rollback.
func Phases(k Kind) []PhaseSpec { return phasesFrom(k, first(k)) }

func phasesFrom(k Kind, name Phase) []PhaseSpec {
	var all []PhaseSpec
	for name != "" {
		p := Spec(k, name)
		all, name = append(all, p), p.Next
	}
	return all
}

// plan returns the phases of the rotation: those of its kind or, in a rollback, those that are
// left of the rollback.
func (r Rotation) plan() []PhaseSpec {
	if r.Phase == Restore || r.Phase == Remove {
		return phasesFrom(r.Kind, r.Phase)
	}
	return Phases(r.Kind)
}

func first(k Kind) Phase {
	if k == RevokeKey {
		return Revoke
	}
	return Stage
}

// Spec returns a phase of a kind.
func Spec(k Kind, name Phase) PhaseSpec {
	i := slices.IndexFunc(specs(), func(p PhaseSpec) bool { return p.Name == name })
	if i < 0 {
		return PhaseSpec{Name: name}
	}
	p := specs()[i]
	switch k {
	case SetRoot: // no task is signed with a root key
		p.Drain, p.Does = false, rootDoes[name]
	case NodeCA: // a certificate of the replaced CA may be in use until the end of the grace period
		p.Drain, p.Confirm, p.Does = false, true, caDoes[name]
		p.Reload = name == Stage || name == Retire || name == Remove // the phases that change the bundle
	case TaskKey, RevokeKey:
	}
	return p
}

func specs() []PhaseSpec {
	return []PhaseSpec{
		{Name: Stage, Does: "Create the new key and publish it as staged", Confirm: true, Next: Activate, Back: Remove},
		{Name: Activate, Does: "Sign tasks with the new key; the old one still verifies", Confirm: true, Next: Grace, Back: Restore},
		{Name: Grace, Does: "Wait until no task needs the old key", Drain: true, Wait: true, Approve: true, Next: Retire, Back: Restore},
		{Name: Retire, Does: "Publish a set without the old key", Confirm: true},
		{Name: Restore, Does: "Sign tasks with the old key again; the new one still verifies", Confirm: true, Drain: true, Next: Remove},
		{Name: Remove, Does: "Publish a set without the new key", Confirm: true},
		{Name: Revoke, Does: "Publish a set in which the key is revoked, and sign open tasks again", Confirm: true, Drain: true},
	}
}

//nolint:gochecknoglobals // read-only table
var rootDoes = map[Phase]string{
	Stage:    "Create the new root key and publish a set that trusts both",
	Activate: "Sign sets with the new root key; the old one is still trusted",
	Grace:    "Wait for the approval to drop the old root key",
	Retire:   "Publish a set that no longer trusts the old root key",
	Restore:  "Sign sets with the old root key again; the new one is still trusted",
	Remove:   "Publish a set that no longer trusts the new root key",
}

//nolint:gochecknoglobals // read-only table
var caDoes = map[Phase]string{
	Stage:    "Create the new CA and publish both CAs to the API and to the nodes",
	Activate: "Issue certificates with the new CA, and have nodes renew theirs; the old CA is still trusted",
	Grace:    "Wait until no node needs the old CA",
	Retire:   "Distrust the old CA, and remove it from the nodes' bundles",
	Restore:  "Issue certificates with the old CA again, and have nodes renew theirs; the new CA is still trusted",
	Remove:   "Distrust the new CA, and remove it from the nodes' bundles",
}
