package machine

import "time"

// LeftoverClass says what the ledger has about a machine that no instance owns.
type LeftoverClass string

// The classes.
const (
	// ClassLeftover: the ledger has the machine, but its instance ended and no operation holds its
	// node. The teardown was forced, or the creation ended after the teardown.
	ClassLeftover LeftoverClass = "leftover"
	// ClassOrphan: the ledger does not have the machine. Another database may own it, for example
	// the one from before a restore, so it is only reported.
	ClassOrphan LeftoverClass = "orphan"
	// ClassDuplicate: the machine has the owner tag of an instance that lives, and the ledger has
	// another machine of it. One of them may run workloads, so it is only reported.
	ClassDuplicate LeftoverClass = "duplicate"
)

// LeftoverClasses lists the classes.
func LeftoverClasses() []LeftoverClass {
	return []LeftoverClass{ClassLeftover, ClassOrphan, ClassDuplicate}
}

// MaxExternalID bounds a provider's ID of a machine in a list, in bytes.
const MaxExternalID = 128

// LeftoverGrace is how long no instance must have owned a machine before it is deleted or reported
// as a fault.
const LeftoverGrace = 30 * time.Minute

// Leftover is a machine at a provider that no instance owns, one of several of an instance, or an open entry of the ledger
// without an owner whose machine the provider does not list; then Phase is empty.
type Leftover struct {
	Provider string
	Machine
	Class LeftoverClass
	// FirstSeen is since when the machine has the class.
	FirstSeen time.Time
}
