package machine

import "time"

// SurplusClass says what the ledger has about a surplus machine.
type SurplusClass string

// The classes.
const (
	// ClassLeftover: the ledger has the machine, but its instance ended. The teardown was forced, or the
	// creation ended after the teardown. A machine becomes one while no operation holds its node, and
	// stays one while an operation holds it.
	ClassLeftover SurplusClass = "leftover"
	// ClassOrphan: the ledger does not have the machine. Another database may own it, for example
	// the one from before a restore, so it is only reported.
	ClassOrphan SurplusClass = "orphan"
	// ClassDuplicate: the machine has the owner tag of an instance that lives, and the ledger has
	// another machine of it. One of them may run workloads, so it is only reported.
	ClassDuplicate SurplusClass = "duplicate"
)

// MaxExternalID bounds a provider's ID of a machine in a list, in bytes.
const MaxExternalID = 128

// SurplusGrace is how long a machine must have had its class before it is deleted or reported as a
// fault.
const SurplusGrace = 30 * time.Minute

// Surplus is a machine at a provider that no instance owns, or a second machine of an instance. It
// may be an open entry of the ledger without an owner whose machine the provider does not list; then
// Phase is empty.
type Surplus struct {
	Provider string
	Machine
	Class SurplusClass
	// FirstSeen is since when the machine has the class.
	FirstSeen time.Time
}
