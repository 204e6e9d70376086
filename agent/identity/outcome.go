package identity

import (
	"time"
)

// Action is what a pass did.
type Action string

// The actions.
const (
	// ActNothing: the identity in use is good, or it is not time to retry yet.
	ActNothing Action = "nothing"
	ActEnroll  Action = "enroll"
	ActRenew   Action = "renew"
	ActRecover Action = "recover"
	// ActPromote: a stored identity was used for the first time.
	ActPromote Action = "promote"
	// ActFallBack: another stored identity took the place of a refused one.
	ActFallBack Action = "fall_back"
	// ActWipe: the node is removed, as a signed document proves; its keys and tokens are wiped.
	ActWipe Action = "wipe"
)

// Outcome is the result of one pass.
type Outcome struct {
	Action Action
	// Err is why the action failed; nil when it succeeded.
	Err error
	// Ready is true when there is an identity to poll with.
	Ready bool
	// Wait is how long the identity needs nothing. A pass before that does
	// nothing and returns what is left.
	Wait time.Duration
	// Removed is true when the node is removed and the agent must stop.
	Removed bool
}
