package rotation

import (
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// View is a rotation as the admin API shows it.
type View struct {
	Rotation

	// Plan are the phases of a rotation that is not rolled back.
	Plan     []PhaseSpec `json:"plan"`
	Progress Progress    `json:"progress"`
	// Blockers are why the rotation stays in its phase.
	Blockers []Blocker `json:"blockers"`
	// Reversible is set while the rotation can be rolled back.
	Reversible bool `json:"reversible"`
}

// Describe returns the view of a rotation at a time.
func Describe(r Rotation, p Progress, now time.Time) View {
	v := View{Rotation: r, Plan: r.plan(), Progress: p, Blockers: []Blocker{}}
	if r.EndedAt == nil {
		v.Blockers, v.Reversible = append(v.Blockers, r.Blockers(p, now)...), r.Spec().Back != ""
		if now.Sub(r.CheckedAt) > Stalled {
			v.Blockers = append(v.Blockers, BlockedWorker)
		}
	}
	return v
}

// Plan is the response to a dry run: what a rotation would do. It has no ID and no phase,
// because nothing was started.
type Plan struct {
	// DryRun is true, and a View does not have it.
	DryRun bool `json:"dry_run"`
	Kind   Kind `json:"kind"`
	// Key is the ID of the key to revoke; only for RevokeKey.
	Key          string      `json:"key,omitempty"`
	GraceSeconds int64       `json:"grace_seconds"`
	Approved     bool        `json:"approved,omitempty"`
	Plan         []PhaseSpec `json:"plan"`
	// Progress is what the first phase would wait for now.
	Progress Progress `json:"progress"`
}

// Preview returns the plan of a rotation that was not started.
func Preview(r Rotation, p Progress) Plan {
	return Plan{DryRun: true, Kind: r.Kind, Key: r.OldKey, GraceSeconds: r.GraceSeconds, Approved: r.Approved, Plan: Phases(r.Kind), Progress: p}
}

// Start is a request for a rotation.
type Start struct {
	Kind Kind `json:"kind"`
	// Key is the ID of the key to revoke; only for RevokeKey.
	Key    string `json:"key,omitempty"`
	Reason string `json:"reason"`
	// GraceSeconds is the grace period, DefaultGrace if it is absent.
	GraceSeconds *int64 `json:"grace_seconds,omitempty"`
	// Approved approves the phase that cannot be undone in advance.
	Approved bool `json:"approved,omitempty"`
	// DryRun starts nothing: the response is a Plan.
	DryRun bool `json:"dry_run,omitempty"`
}

// Decide is a request for a decision about the open rotation.
type Decide struct {
	Reason string `json:"reason"`
	// Nodes are the nodes that Waive waives, by ID or host name. Offline waives all nodes
	// that sent no heartbeat for lifecycle.SilentAfter.
	Nodes   []string `json:"nodes,omitempty"`
	Offline bool     `json:"offline,omitempty"`
}

// Key is a key of a verifier set.
type Key struct {
	KeyID string         `json:"key_id"`
	State trust.KeyState `json:"state"`
	// SHA256 is the hex SHA-256 of the public key.
	SHA256 string `json:"sha256"`
}

// KeysOf describes the keys of a verifier set.
func KeysOf(keys trust.VerifierKeys) []Key {
	all := []Key{}
	for _, k := range keys {
		all = append(all, Key{k.KeyID, k.State, schema.SHA256Hex(k.Public)})
	}
	return all
}

// Trust is what nodes verify tasks with: the newest verifier set.
type Trust struct {
	Version   int64     `json:"version"`
	Hash      string    `json:"hash"`
	Epoch     int64     `json:"epoch"`
	IssuedAt  time.Time `json:"issued_at"`
	ExpiresAt time.Time `json:"expires_at"`
	// Keys are the keys with their states. Roots are the root keys that may sign later
	// sets; empty if the set names none.
	Keys  []Key `json:"keys"`
	Roots []Key `json:"roots"`
	// SignedBy is the ID of the root key that signed the set.
	SignedBy string `json:"signed_by"`
	// Nodes is the number of nodes that poll, Confirmed how many of them report the set.
	Nodes     int `json:"nodes"`
	Confirmed int `json:"confirmed"`
}
