package verify

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// NewNonce returns the nonce that binds an answer to its poll.
func NewNonce() string {
	b := make([]byte, wire.NonceBytes)
	rand.Read(b) // it never fails: the program ends instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// maxDelegation is the longest validity of a delegation: trust.LeaseKeyLifetime, and an
// hour for the clocks of the control plane.
const maxDelegation = trust.LeaseKeyLifetime + time.Hour

// grant verifies that the offer answers this poll and returns the time against which the
// offer is checked: the grant's, or a later one.
func (v Verifier) grant(o wire.TaskOffer) (g task.Grant, now time.Time, err error) {
	var delegation trust.LeaseKey
	_, err = open(trust.LeaseKeyPayloadType, refusal.OfGrantKey, o.GrantKey, v.Set.Accepted(), &delegation)
	if err != nil {
		return g, now, err
	}
	key, err := v.delegate(delegation)
	if err != nil {
		return g, now, err
	}
	if _, err := open(trust.LeasePayloadType, refusal.OfGrant, o.Grant, []trust.VerifierKey{key}, &g); err != nil {
		return g, now, err
	}
	if err := v.mine(g); err != nil {
		return g, now, err
	}
	if err := v.Clock.admit(g.ServerTime, v.Server); err != nil {
		return g, now, err
	}
	now = v.Clock.later(g.ServerTime)
	switch {
	case now.Add(notBeforeSkew).Before(delegation.NotBefore) || now.After(delegation.NotAfter):
		err = refusal.New(refusal.GrantKeyExpired, "the grant's key is valid from %s to %s, the current time is %s",
			text.FormatTime(delegation.NotBefore), text.FormatTime(delegation.NotAfter), text.FormatTime(now))
	case v.Set.Doc.Version > 0 && g.SetVersion == v.Set.Doc.Version && g.SetHash != v.Set.Hash:
		err = refusal.New(trust.ReasonSetFork, "there are two verifier sets %d: %s is held, %s is granted by", v.Set.Doc.Version, v.Set.Hash, text.Truncate(g.SetHash))
	}
	if err == nil {
		v.Clock.observe(now)
	}
	return g, now, err
}

// delegate is the key that a delegation names. A key of the set is none: what
// signs tasks must not sign grants.
func (v Verifier) delegate(d trust.LeaseKey) (trust.VerifierKey, error) {
	switch {
	case d.V != payloadVersion:
		return trust.VerifierKey{}, refusal.New(refusal.OfGrantKey+trust.ReasonVersion, "version %d of the delegation is unsupported", d.V)
	case d.Env != v.ID.Env:
		return trust.VerifierKey{}, refusal.New(refusal.OfGrantKey+trust.ReasonEnvironment, "the delegation is for another environment")
	case d.NotAfter.Sub(d.NotBefore) > maxDelegation:
		return trust.VerifierKey{}, refusal.New(refusal.GrantKeyLifetime, "the delegation is valid for more than %s", maxDelegation)
	case len(d.Public) != ed25519.PublicKeySize || d.KeyID == "":
		return trust.VerifierKey{}, refusal.New(refusal.OfGrantKey+trust.ReasonBody, "the delegation names no key")
	case slices.ContainsFunc(v.Set.Doc.Keys, func(k trust.VerifierKey) bool { return k.Public.Equal(d.Public) || k.KeyID == d.KeyID }):
		return trust.VerifierKey{}, refusal.New(refusal.GrantKeyNotDelegate, "the delegation names a key of the verifier set")
	}
	return trust.VerifierKey{State: trust.KeyActive, KeyID: d.KeyID, Public: d.Public}, nil
}

// mine checks that a grant answers this poll of this node.
func (v Verifier) mine(g task.Grant) error {
	switch {
	case g.V != payloadVersion:
		return refusal.New(refusal.OfGrant+trust.ReasonVersion, "version %d of the grant is unsupported", g.V)
	case g.Env != v.ID.Env:
		return refusal.New(refusal.OfGrant+trust.ReasonEnvironment, "the grant is for another environment")
	case g.NodeID != v.ID.NodeID || g.Incarnation != v.ID.Incarnation:
		return refusal.New(refusal.GrantOtherNode, "the grant is for another node or incarnation")
	case v.Nonce == "" || g.Nonce != v.Nonce:
		return refusal.New(refusal.GrantOtherNonce, "the grant answers another poll")
	}
	return nil
}

// covers checks that the grant is for this task and lease, and that the node is in the
// state that the task expects. Only agent.update_trust may belong to no operation, and then
// expects operation 0.
func covers(g task.Grant, t task.Verified, lease task.Lease) error {
	p := t.Payload
	switch {
	case g.TaskID != p.TaskID || g.EnvelopeSHA256 != t.Digest:
		return refusal.New(refusal.GrantOtherTask, "the grant is for another task")
	case g.LeaseEpoch != lease.Epoch:
		return refusal.New(refusal.GrantOtherEpoch, "the grant is for lease %d, the offer for lease %d", g.LeaseEpoch, lease.Epoch)
	case !g.LeaseUntil.Equal(lease.ExpiresAt):
		return refusal.New(refusal.GrantOtherExpiry, "the lease of the grant expires at %s, that of the offer at %s",
			text.FormatTime(g.LeaseUntil), text.FormatTime(lease.ExpiresAt))
	case g.OpSeq != p.Expect.OpSeq && (p.Expect.OpSeq != 0 || p.Type != task.UpdateTrust):
		return refusal.New(refusal.StateExpectation, "the task is for operation %d, the node's is %d", p.Expect.OpSeq, g.OpSeq)
	case p.Expect.NodeState != "" && g.NodeState != p.Expect.NodeState:
		return refusal.New(refusal.StateExpectation, "the task expects the node in state %s, it is in %s", p.Expect.NodeState, text.Truncate(string(g.NodeState)))
	}
	return nil
}
