package agent

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// keeperFile is the name of the keeper's hint in the state folder.
const keeperFile = "keeper.json"

// KeeperStatus is what the running agent last said of its identity.
type KeeperStatus struct {
	At time.Time `json:"at"`
	// Trouble is why the last thing done for the identity failed.
	Trouble string    `json:"trouble,omitempty"`
	RetryAt time.Time `json:"retry_at,omitzero"`
}

// SetStatus is the stored verifier set. Epoch and ExpiresAt are zero while only
// the bundle's keys are known of it.
type SetStatus struct {
	Version   int64     `json:"version"`
	Hash      string    `json:"hash"`
	Epoch     int64     `json:"epoch"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// readSet returns nil where no set is stored, or none that reads.
func readSet(c Config, state stateDir) *SetStatus {
	var f storedSet
	if ok, err := state.readJSON(state.file(setFile), &f); err != nil || !ok {
		return nil
	}
	s, err := f.held(c.Env)
	if err != nil {
		return nil
	}
	return &SetStatus{Version: s.version, Hash: s.hash, Epoch: s.epoch, ExpiresAt: s.expires}
}

// VersionStatus is one stored identity, without its secrets.
type VersionStatus struct {
	// Version is the folder's number; 0 is the pair at the configured paths.
	Version     int               `json:"version"`
	InUse       bool              `json:"in_use"`
	Via         trust.IssueMethod `json:"via,omitempty"`
	Sequence    int64             `json:"sequence"`
	Incarnation int64             `json:"incarnation"`
	StoredAt    time.Time         `json:"stored_at,omitzero"`
	Certificate trust.CertFacts   `json:"certificate"`
	// RecoveryExpiresAt is the end of the recovery token that came with it.
	RecoveryExpiresAt time.Time `json:"recovery_expires_at,omitzero"`
}

// readIdentity fills in what the state folder says of the identity, as a start
// of the agent would see it: it does not know what the server refuses.
func (s *Status) readIdentity(c Config, state stateDir) error {
	quiet := slog.New(slog.DiscardHandler)
	k := keeper{conf: &c, log: quiet, store: newVersionStore(c, state, quiet), keys: keyRing{state}, state: state,
		clock: &serverClock{local: time.Now, log: quiet}}
	list, err := k.store.list()
	if err != nil {
		return err
	}
	k.mem, _, _ = loadMemory(state) // the agent goes on without it too
	k.clock.heardBefore(k.mem.ServerTime)
	s.Versions, k.versions = []VersionStatus{}, k.ours(list)
	s.Removed, s.RecoveryPossible = state.gone(c), k.recoverable()
	best := k.another()
	for _, v := range k.versions {
		s.Versions = append(s.Versions, VersionStatus{
			Version: v.number, InUse: v == best, Via: v.meta.Via, Sequence: v.meta.Sequence, Incarnation: v.id.Incarnation,
			StoredAt: v.meta.StoredAt, Certificate: v.facts, RecoveryExpiresAt: v.meta.RecoveryExpiresAt,
		})
		if v.meta.Via == trust.IssuedByRenew && v.meta.StoredAt.After(s.LastRenewal) {
			s.LastRenewal = v.meta.StoredAt
		}
	}
	var hint KeeperStatus
	if ok, err := readJSON(state.file(keeperFile), &hint); err == nil && ok {
		s.Keeper = &hint
	}
	switch {
	case best != nil:
		s.describe(c, best)
		s.NextRenewal = k.renewAt(best).UTC()
	case len(k.versions) > 0:
		s.describe(c, k.versions[0])
		s.IdentityFault = fmt.Sprintf("the certificate expired at %s", stamp(k.versions[0].leaf.NotAfter))
	case len(list) > 0:
		s.describe(c, list[0])
		s.IdentityFault = list[0].matches(c).Error()
	default:
		s.IdentityFault = errNoIdentity.Error()
	}
	return nil
}

func (s *Status) describe(c Config, v *version) {
	s.Identity, s.Sequence = &v.facts, v.meta.Sequence
	if err := v.checkIssuer(c.NodeCABundlePath); err != nil {
		s.IssuerFault = err.Error()
	}
}
