package rotation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// DefaultGrace is the grace period of a rotation. It is longer than the delegation of a
// lease key is valid.
const DefaultGrace = 25 * time.Hour

// ReplicaGone is how long a replica of the API that no longer reports is waited for. Each
// reports every 10 seconds, and reads the node CAs when they change and once a minute.
const ReplicaGone = 2 * time.Minute

// MaxShown is how many of the nodes that have not confirmed a phase are listed.
const MaxShown = 100

// Rotation is the record of a rotation.
type Rotation struct {
	RotationID string `json:"rotation_id"`
	Kind       Kind   `json:"kind"`
	Phase      Phase  `json:"phase"`
	// Step increases with each change of the record. A write names the step that it
	// read, so that one of two concurrent writes fails.
	Step int64 `json:"step"`
	// OldKey and NewKey are the IDs of the keys, or the names of a node CA's issuers in
	// Vault. OldKey of a revocation is the key that is revoked. NewKey is empty until it is known.
	OldKey string `json:"old_key"`
	NewKey string `json:"new_key,omitempty"`
	// SetVersion is the verifier set that nodes must report in this phase, 0 until it is
	// published.
	SetVersion int64 `json:"set_version,omitempty"`
	// CA is what a rotation of the node CA requires in this phase, zero until Vault has it.
	CA         CA        `json:"ca,omitzero"`
	PhaseSince time.Time `json:"phase_since"`
	// GraceSeconds is how long the old key stays valid after the new one is active.
	GraceSeconds int64 `json:"grace_seconds"`
	// Approved is set once an operator approved the phase that cannot be undone.
	Approved bool `json:"approved,omitempty"`
	// Paused is set while an operator holds the rotation in its phase.
	Paused bool `json:"paused,omitempty"`

	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Outcome   Outcome    `json:"outcome,omitempty"`
	// CheckedAt is when the workflow last looked at the rotation. Failure is the FailureOf what
	// prevented it from continuing.
	CheckedAt time.Time `json:"checked_at"`
	Failure   string    `json:"failure,omitempty"`
}

// CA is the state of the node CA in a phase.
type CA struct {
	// Bundle is the trust.BundleDigest of the CAs that nodes must have in their bundle.
	Bundle string `json:"bundle,omitempty"`
	// Issuer is the subject of the CA that issues certificates, and IssuerKey the hex key
	// ID of its key. Each CA has its own subject.
	Issuer    string `json:"issuer,omitempty"`
	IssuerKey string `json:"issuer_key,omitempty"`
}

// Spec returns the current phase.
func (r Rotation) Spec() PhaseSpec { return Spec(r.Kind, r.Phase) }

// Grace returns the grace period.
func (r Rotation) Grace() time.Duration { return time.Duration(r.GraceSeconds) * time.Second }

// Begin returns a new rotation in its first phase.
func Begin(k Kind, oldKey string, grace time.Duration) Rotation {
	return Rotation{RotationID: schema.NewID(), Kind: k, Phase: first(k), OldKey: oldKey, GraceSeconds: int64(grace / time.Second)}
}

// Draining returns the key with which no open task may be signed when the rotation leaves
// its phase, "" if the phase has no such condition.
func (r Rotation) Draining() string {
	switch {
	case !r.Spec().Drain:
		return ""
	case r.Phase == Restore:
		return r.NewKey
	}
	return r.OldKey
}

// Published reports whether it is known what nodes must confirm in the phase.
func (r Rotation) Published() bool {
	if r.Kind == NodeCA {
		return r.CA.Bundle != ""
	}
	return r.SetVersion > 0
}

// Asked returns what nodes must confirm in the phase of a rotation of the node CA: that they
// have the bundle, or in the phases in which certificates change that theirs is of the issuer.
// Both are empty for other kinds.
func (r Rotation) Asked() (bundle, issuer string) {
	switch {
	case r.Kind != NodeCA:
	case r.Phase == Activate || r.Phase == Grace || r.Phase == Restore:
		issuer = r.CA.Issuer
	default:
		bundle = r.CA.Bundle
	}
	return bundle, issuer
}

// Waiting is a node that has not confirmed the phase.
type Waiting struct {
	NodeID string `json:"node_id"`
	Host   string `json:"host"`
	State  string `json:"state"`
	// SetVersion is the set that the node last reported.
	SetVersion int64 `json:"set_version"`
	// SetLost is set if the database does not have that set.
	SetLost bool `json:"set_lost,omitempty"`
	// Issuer is the issuer of the certificate that the node uses, and CABundle the
	// trust.BundleDigest that it last reported.
	Issuer          string     `json:"issuer,omitempty"`
	CABundle        string     `json:"ca_bundle,omitempty"`
	LastHeartbeatAt *time.Time `json:"last_heartbeat_at"`
}

// Reported describes what a node that has not confirmed the phase has instead. Nodes report
// parts of it.
func (r Rotation) Reported(n Waiting) string {
	switch bundle, issuer := r.Asked(); {
	case issuer != "":
		return "certificate of " + cmp.Or(n.Issuer, "-")
	case bundle != "":
		return "CA bundle " + cmp.Or(n.CABundle[:min(len(n.CABundle), 12)], "-")
	}
	return fmt.Sprintf("set %d", n.SetVersion) + Lost(n.SetLost)
}

// Lost describes a set that a node has and the database does not have: the database was restored
// to an earlier time, or the node reports what it does not have.
func Lost(lost bool) string {
	if lost {
		return ", which the database does not have"
	}
	return ""
}

// Progress is what the phase waits for.
type Progress struct {
	// Nodes is the number of nodes that must confirm the phase's set, Confirmed how many
	// did, and Waived how many an operator waived that did not.
	Nodes     int `json:"nodes"`
	Confirmed int `json:"confirmed"`
	Waived    int `json:"waived"`
	// Waiting are the first of the others, by host name.
	Waiting []Waiting `json:"waiting"`
	// OpenTasks is the number of open tasks that are signed with the key being replaced.
	OpenTasks int `json:"open_tasks"`
	// Replicas is the number of replicas of the node API that reported within ReplicaGone,
	// and Reloaded how many of them accept exactly the CAs of the phase. Both are 0 in
	// phases without PhaseSpec.Reload.
	Replicas int `json:"replicas"`
	Reloaded int `json:"reloaded"`
}

// Blocker is why a rotation stays in its phase.
type Blocker string

// The blockers, in the order in which they are reported.
const (
	BlockedPaused   Blocker = "paused"
	BlockedSet      Blocker = "set_unpublished"
	BlockedReload   Blocker = "replicas_reloading"
	BlockedNodes    Blocker = "nodes_unconfirmed"
	BlockedTasks    Blocker = "tasks_open"
	BlockedGrace    Blocker = "grace_period"
	BlockedApproval Blocker = "approval_missing"
	// BlockedWorker is only in a View: nothing looks at the rotation, because its workflow does
	// not run or no worker runs it.
	BlockedWorker Blocker = "worker_missing"
)

// Stalled is how long the workflow of an open rotation may not look at it.
const Stalled = 5 * time.Minute

// Blockers returns why the rotation cannot leave its phase at a time, in order; none if
// it can.
func (r Rotation) Blockers(p Progress, now time.Time) []Blocker {
	spec := r.Spec()
	var all []Blocker
	for _, c := range []struct {
		holds bool
		why   Blocker
	}{
		{r.Paused, BlockedPaused},
		{!r.Published(), BlockedSet},
		{spec.Reload && (p.Replicas == 0 || p.Reloaded < p.Replicas), BlockedReload},
		{spec.Confirm && p.Confirmed+p.Waived < p.Nodes, BlockedNodes},
		{spec.Drain && p.OpenTasks > 0, BlockedTasks},
		{spec.Wait && now.Before(r.PhaseSince.Add(r.Grace())), BlockedGrace},
		{spec.Approve && !r.Approved, BlockedApproval},
	} {
		if c.holds {
			all = append(all, c.why)
		}
	}
	return all
}

// Advance returns the rotation in its next phase, or ended.
func (r Rotation) Advance(now time.Time) Rotation {
	spec := r.Spec()
	if spec.Next == "" {
		r.EndedAt, r.Outcome = &now, Completed
		if r.Phase == Remove {
			r.Outcome = RolledBack
		}
		return r
	}
	return r.enter(spec.Next, now)
}

func (r Rotation) enter(p Phase, now time.Time) Rotation {
	r.Phase, r.PhaseSince = p, now
	if p != Grace { // Grace keeps the set of Activate
		r.SetVersion, r.CA = 0, CA{}
	}
	return r
}

// Decision is what an operator decides about a rotation.
type Decision string

// The decisions.
const (
	Approve  Decision = "approve"
	Pause    Decision = "pause"
	Resume   Decision = "resume"
	Waive    Decision = "waive"
	Rollback Decision = "rollback"
)

// Decisions returns every decision.
func Decisions() []Decision { return []Decision{Approve, Pause, Resume, Waive, Rollback} }

// Decided is a decision with its reason.
type Decided struct {
	Decision Decision
	Reason   string
	// NodeIDs are the nodes that Waive waives. Offline waives all nodes that sent no
	// heartbeat for lifecycle.SilentAfter.
	NodeIDs []string
	Offline bool
}

// Decide returns the rotation after a decision. It is KindDecisionOutdated if the rotation
// ended, and KindInvalidRequest if the phase cannot be undone. Repeating a decision
// changes nothing.
func (r Rotation) Decide(d Decision, now time.Time) (Rotation, error) {
	switch {
	case r.EndedAt != nil:
		return r, schema.NewError(schema.KindDecisionOutdated, "the rotation has ended: %s", r.Outcome).WithReason("rotation_over").WithNext("gpuaas rotate show")
	case !slices.Contains(Decisions(), d):
		return r, schema.NewError(schema.KindInvalidRequest, "unknown decision").WithReason("bad_decision")
	}
	switch d {
	case Approve:
		if r.Phase == Restore || r.Phase == Remove {
			return r, schema.NewError(schema.KindInvalidRequest, "the rotation is being rolled back, which needs no approval").
				WithReason("rolling_back").WithNext("gpuaas rotate show")
		}
		r.Approved = true
	case Pause:
		r.Paused = true
	case Resume:
		return r.resume(now), nil
	case Rollback:
		return r.rollback(now)
	}
	return r, nil
}

// resume ends a pause. A rollback whose failure has resume as its next step goes forward again. No
// other one does: resume also starts the workflow of a rotation again.
func (r Rotation) resume(now time.Time) Rotation {
	switch _, next := r.Cause(); {
	case r.Paused:
		r.Paused = false
	case r.Phase == Restore && next == nextForward:
		r = r.enter(Activate, now)
	case r.Phase == Remove && next == nextForward:
		r = r.enter(Stage, now)
	}
	return r
}

// nextForward is the next step of ErrKeyRetired.
const nextForward = "gpuaas rotate resume --reason TEXT, which continues the rotation"

// ErrKeyRetired is the error of a rollback after the rotation has ended in a time that the
// database lost: Vault has retired the key. Resume then continues the rotation.
func ErrKeyRetired(key string) error {
	return schema.NewError(schema.KindInvalidRequest, "Vault has retired %s, so the rotation cannot be rolled back", key).
		WithReason("old_key_retired").WithNext(nextForward)
}

// ErrCARetired is the error of a rotation of the node CA after its rollback has ended in a time
// that the database lost: Vault has retired the new CA. A rollback then ends the rotation again.
func ErrCARetired(name string) error {
	return schema.NewError(schema.KindInvalidRequest, "Vault has retired the new CA %s, so the rotation can only be rolled back", name).
		WithReason("new_key_retired").WithNext("gpuaas rotate rollback --reason TEXT")
}

// beforeNext separates the message from the next step in a rotation's Failure.
const beforeNext = "; next: "

// FailureOf returns the message of an error that is not nil, followed by its next step if it has one.
func FailureOf(err error) string {
	e := schema.AsError(err)
	if e.Next == "" {
		return e.Message
	}
	return e.Message + beforeNext + e.Next
}

// Cause returns the message and the next step of Failure. Both may be empty.
func (r Rotation) Cause() (message, next string) {
	message, next, _ = strings.Cut(r.Failure, beforeNext)
	return message, next
}

func (r Rotation) rollback(now time.Time) (Rotation, error) {
	switch back := r.Spec().Back; {
	case r.Phase == Restore || r.Phase == Remove:
		return r, nil
	case back == "":
		return r, schema.NewError(schema.KindInvalidRequest, "phase %s cannot be undone", r.Phase).WithReason("not_reversible").WithNext("gpuaas rotate show")
	default:
		r = r.enter(back, now)
		r.Paused, r.Approved = false, false
		return r, nil
	}
}
