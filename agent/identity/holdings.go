package identity

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// holdings are the node's stored identities and tokens.
type holdings struct {
	conf  Config
	log   *slog.Logger
	clock Clock
	dir   disk.StateDir
	store versionStore
	keys  keyRing
	nextToken

	inUse    atomic.Pointer[Version]
	versions []*Version // newest first
	// rejected holds the reasons why versions, by serial, are not used now.
	rejected map[string]string
	saved    persistedState

	lastWarned time.Time // that the certificate expires
}

// unstored reports whether no stored version has the key.
func (h *holdings) unstored(key stagedKey) bool {
	return !slices.ContainsFunc(h.versions, func(v *Version) bool { return v.Facts.SPKI == key.SPKI })
}

// newestNumber is the number of the newest version, 0 without one.
func (h *holdings) newestNumber() int {
	if len(h.versions) == 0 {
		return 0
	}
	return h.versions[0].Number
}

// Sequence is the highest sequence of the newest incarnation's identities, 0 without one.
func (h *holdings) Sequence() (highest int64) {
	for _, v := range h.versions {
		if v.ID.Incarnation == h.versions[0].ID.Incarnation {
			highest = max(highest, v.Meta.Sequence)
		}
	}
	return highest
}

// Recoverable reports whether the node can ask for a new certificate without a
// usable one: it holds its recovery key and a recovery token.
func (h *holdings) Recoverable() bool {
	key, err := h.keys.recovery()
	return err == nil && key != nil && len(h.recoveryTokens()) > 0
}

// recoveryTokens are those of the newest incarnation's versions, newest first: the
// newest is live once its certificate was used, the one before until then. The
// enrollment that began the incarnation voided all earlier ones.
func (h *holdings) recoveryTokens() []string {
	var out []string
	for _, v := range h.versions {
		t := v.Meta.RecoveryToken
		if v.ID.Incarnation == h.versions[0].ID.Incarnation && t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// newestUnused reports whether the newest version came from an enrollment and was never
// used. A copy of the request that arrived late may have replaced it, and then
// its recovery token is not live: its enrollment is made again, with its key.
func (h *holdings) newestUnused() bool {
	if len(h.versions) == 0 {
		return false
	}
	_, enrollment := h.keys.unanswered(h.versions[0])
	return enrollment
}

func (h *holdings) reissueCommand() string {
	return "gpuaas node reissue-enrollment " + h.conf.NodeID + ", and run its command here"
}

// publish writes the recovery token to the env file instead of a token that
// is no longer valid. Where the file cannot be written, the token is in the state
// folder only.
func (h *holdings) publish(v *Version) {
	token := v.Meta.RecoveryToken
	if token == "" || h.conf.EnvFile == "" {
		return
	}
	done, err := replaceEnvToken(h.dir, h.conf.EnvFile, token, h.hasToken)
	switch {
	case err != nil:
		h.log.Warn("cannot write the env file, the recovery token is in the state folder only",
			"env_file", h.conf.EnvFile, "err", err.Error())
	case done:
		h.saved.Seen = tokenDigest(token)
	}
}

// hasToken reports whether this node has used or holds a token.
func (h *holdings) hasToken(token string) bool {
	d := tokenDigest(token)
	return slices.Contains(h.saved.Spent, d) || slices.ContainsFunc(h.versions, func(v *Version) bool {
		return v.Meta.RecoveryToken == token || slices.Contains(v.Meta.Spent, d)
	})
}

// enrollToken is the token of an enrollment: that of a task for the next identity, else that of
// the configuration.
func (h *holdings) enrollToken() string {
	if t := h.token.Reveal(); t != "" && !h.hasToken(t) {
		return t
	}
	return h.conf.Token.Reveal()
}

// unspent reports whether the node holds a token that may still be used for an enrollment.
func (h *holdings) unspent() bool {
	t := h.enrollToken()
	return t != "" && !h.hasToken(t)
}

// newToken reports whether an operator put a new token into the configuration, or a task got
// one: it takes precedence over the current identity.
func (h *holdings) newToken() bool {
	return h.unspent() && h.saved.Seen != tokenDigest(h.enrollToken())
}

// save stores the state that outlives the process. It can be derived again, so a
// failure is only logged.
func (h *holdings) save() {
	h.saved.ServerTime = h.clock.Floor()
	if err := h.dir.WriteJSON(h.dir.File(memoryFile), h.saved); err != nil {
		h.log.Warn("cannot store the identity state", "err", err.Error())
	}
}

// install copies the version to the configured paths, for operators.
func (h *holdings) install(v *Version) {
	if err := h.store.install(v); err != nil {
		h.log.Warn("cannot copy certificate and key to their paths, the stored identity stays in use",
			"cert_path", h.conf.CertPath, "err", err.Error())
		return
	}
	if v.Number > h.saved.Installed {
		h.saved.Installed = v.Number
		h.save()
	}
}

// Current is the identity in use, nil when there is none. It may be called from
// any goroutine.
func (h *holdings) Current() *Version { return h.inUse.Load() }

// Versions are the stored identities, newest first.
func (h *holdings) Versions() []*Version { return h.versions }

// own drops the versions of another node or environment.
func (h *holdings) own(list []*Version) []*Version {
	return slices.DeleteFunc(list, func(v *Version) bool {
		err := v.matches(h.conf)
		if err != nil {
			h.log.Error("stored identity belongs to another node", "version", v.Number, "err", err.Error())
		}
		return err != nil
	})
}

// prune drops the versions that are no longer needed, in memory and on disk.
func (h *holdings) prune() {
	var kept, dropped []*Version
	for i, v := range h.versions {
		if i < keepVersions || v == h.inUse.Load() || v.Number == h.saved.Proven {
			kept = append(kept, v)
		} else {
			dropped = append(dropped, v)
		}
	}
	h.versions = kept
	if err := h.store.prune(kept, dropped); err != nil {
		h.log.Warn("cannot prune old identities", "err", err.Error())
	}
}

// rejectMovedAside stops using the installed versions if an operator removed the copies
// from the configured paths, which means that their keys must not be used again. They
// stay in use if the node cannot obtain another identity. A version that was never
// installed has no copy that an operator could have removed.
func (h *holdings) rejectMovedAside() {
	if h.saved.Installed == 0 || len(h.versions) == 0 || !h.store.missing() {
		return
	}
	if !h.Recoverable() && !h.unspent() {
		h.log.Warn("certificate and key were moved aside, but the node cannot obtain another identity: they stay in use")
		return
	}
	for _, v := range h.versions {
		if v.Number <= h.saved.Installed {
			h.rejected[v.Facts.Serial] = "certificate and key were moved aside"
		}
	}
}

// usable returns the newest stored version that can be used.
func (h *holdings) usable() *Version {
	for _, v := range h.versions {
		if _, rejected := h.rejected[v.Facts.Serial]; !rejected && !h.expired(v) {
			return v
		}
	}
	return nil
}

func (h *holdings) expired(v *Version) bool { return h.clock.Now().After(v.Leaf.NotAfter) }

// RenewAt is when a version is due for renewal: around half of its lifetime, at a point
// that depends on the node and the serial, so that certificates issued at the same time
// are not renewed at the same time.
func (h *holdings) RenewAt(v *Version) time.Time {
	life := v.Leaf.NotAfter.Sub(v.Leaf.NotBefore)
	sum := sha256.Sum256([]byte(v.ID.NodeID + v.Facts.Serial))
	spread := float64(binary.BigEndian.Uint64(sum[:8]))/math.MaxUint64*2 - 1
	return v.Leaf.NotBefore.Add(time.Duration(float64(life) * (trust.RenewAt + trust.RenewJitter*spread)))
}

// warnBeforeExpiry logs once an hour, in the last quarter of the certificate's lifetime,
// that the certificate expires.
func (h *holdings) warnBeforeExpiry() {
	v, now := h.inUse.Load(), h.clock.Now()
	if v == nil {
		return
	}
	left := v.Leaf.NotAfter.Sub(now)
	if left > v.Leaf.NotAfter.Sub(v.Leaf.NotBefore)/4 || !h.lastWarned.IsZero() && now.Sub(h.lastWarned).Abs() < time.Hour {
		return
	}
	h.lastWarned = now
	h.log.Error("certificate expires soon and could not be renewed", "serial", v.Facts.Serial, "not_after", v.Facts.NotAfter,
		"left", left.Round(time.Second).String(), "recovery_possible", h.Recoverable(),
		"next", "see the failed renewals above; gpuaas node show "+h.conf.NodeID)
}

// Presenter answers a handshake's request for a certificate with the version's,
// for as long as the node has an identity at all. Its error ends the handshake
// before anything is sent.
func (h *holdings) Presenter(v *Version) Presenter {
	return func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if v == nil || h.inUse.Load() == nil {
			return nil, ErrNone
		}
		return v.presentTo(r)
	}
}
