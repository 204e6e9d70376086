package identity

import (
	"log/slog"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// managerFile is the name of the manager's status in the state folder.
const managerFile = "identity-status.json"

// ManagerStatus is the running agent's latest report on its identity.
type ManagerStatus struct {
	At    time.Time `json:"at"`
	State State     `json:"state"`
	// Trouble is why the latest action for the identity failed.
	Trouble string    `json:"trouble,omitempty"`
	RetryAt time.Time `json:"retry_at,omitzero"`
}

// VersionStatus is one stored identity, without its secrets.
type VersionStatus struct {
	// Version is the folder's number.
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

// Status is what a state folder holds about the identity.
type Status struct {
	Identity *trust.CertFacts `json:"identity"`
	// IdentityFault is the reason why there is no usable identity.
	IdentityFault string `json:"identity_fault,omitempty"`
	// IssuerFault is set when no node CA of the bundle issued the certificate.
	IssuerFault string `json:"issuer_fault,omitempty"`
	// Versions are the stored identities, newest first.
	Versions []VersionStatus `json:"identity_versions"`
	Sequence int64           `json:"sequence"`
	// RecoveryPossible is true when the node can obtain a certificate without a
	// usable one.
	RecoveryPossible bool      `json:"recovery_possible"`
	LastRenewal      time.Time `json:"last_renewal,omitzero"`
	NextRenewal      time.Time `json:"next_renewal,omitzero"`
	// Manager is the running agent's latest report on its identity.
	Manager *ManagerStatus `json:"identity_manager"`
	// Removed is true when the server removed the node.
	Removed bool `json:"removed,omitempty"`
}

// ReadStatus reads the identity from a state folder as a starting agent does.
// The server's refusals are unknown to it.
func ReadStatus(c Config, dir disk.StateDir, clock Clock) (Status, error) {
	s := Status{Versions: []VersionStatus{}}
	m, list, err := read(c, dir, clock)
	if err != nil {
		return s, err
	}
	s.Removed, s.RecoveryPossible = wasRemoved(dir, c), m.Recoverable()
	best := m.usable()
	for _, v := range m.versions {
		s.Versions = append(s.Versions, VersionStatus{
			Version: v.Number, InUse: v == best, Via: v.Meta.Via, Sequence: v.Meta.Sequence, Incarnation: v.ID.Incarnation,
			StoredAt: v.Meta.StoredAt, Certificate: v.Facts, RecoveryExpiresAt: v.Meta.RecoveryExpiresAt,
		})
		if v.Meta.Via == trust.IssuedByRenew && v.Meta.StoredAt.After(s.LastRenewal) {
			s.LastRenewal = v.Meta.StoredAt
		}
	}
	var report ManagerStatus
	if ok, err := dir.ReadJSON(dir.File(managerFile), &report); err == nil && ok {
		s.Manager = &report
	}
	switch {
	case best != nil:
		s.describe(c, best)
		s.NextRenewal = m.RenewAt(best).UTC()
	case len(m.versions) > 0:
		s.describe(c, m.versions[0])
		s.IdentityFault = expiry(m.versions[0])
	case len(list) > 0:
		s.describe(c, list[0])
		s.IdentityFault = list[0].matches(c).Error()
	default:
		s.IdentityFault = ErrNone.Error()
	}
	return s, nil
}

// Confirmed returns the identity that the server accepted last, or the one that a starting agent
// would use if that one has expired or there is none. It returns nil without a usable identity.
// The use of another one would promote it in place of the identity that a running agent uses.
func Confirmed(c Config, dir disk.StateDir, clock Clock) (*Version, error) {
	m, _, err := read(c, dir, clock)
	if err != nil {
		return nil, err
	}
	for _, v := range m.versions {
		if v.Number == m.saved.Proven && !m.expired(v) {
			return v, nil
		}
	}
	return m.usable(), nil
}

// read returns a manager with the node's stored identities, and all stored ones, those of
// other nodes included.
func read(c Config, dir disk.StateDir, clock Clock) (*Manager, []*Version, error) {
	m := New(c, dir, nil, clock, slog.New(slog.DiscardHandler))
	list, err := m.store.list()
	if err != nil {
		return nil, nil, err
	}
	dir.ReadJSON(dir.File(memoryFile), &m.saved) //nolint:errcheck // the agent starts without it too
	clock.Restore(m.saved.ServerTime)
	m.versions = m.own(list)
	return m, list, nil
}

func (s *Status) describe(c Config, v *Version) {
	s.Identity, s.Sequence = &v.Facts, v.Meta.Sequence
	if err := v.checkIssuer(c.NodeCABundlePath); err != nil {
		s.IssuerFault = err.Error()
	}
}
