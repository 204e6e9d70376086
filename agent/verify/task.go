package verify

import (
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Limits of acceptance.
const (
	payloadVersion = 1
	typeVersion    = 1
	// notBeforeSkew covers the difference between the clocks of the parts of the
	// control plane: the node's own does not count.
	notBeforeSkew = 5 * time.Minute
)

// Verifier decides which offers are tasks for this node. It belongs to one poll.
type Verifier struct {
	ID    trust.Identity
	Set   Set
	Nonce string // of the poll
	Clock *Clock
	// Server is the server's time as known before the poll's answer.
	Server time.Time
	// Known reports whether the journal holds the same task. Its time is then not
	// checked, because nothing new begins. Nil means that it holds none.
	Known func(taskID, digest string) bool
}

// Verify accepts an offer or returns the reason why not: its grant is fresh and for
// this poll, its task is signed and for this node, and both match. Every error
// is KindTaskRefused with a reason. It does not look at the sequence: that needs
// the journal.
func (v Verifier) Verify(o wire.TaskOffer) (task.Verified, error) {
	g, now, err := v.grant(o)
	if err != nil {
		return task.Verified{}, err
	}
	t, err := v.check(o.Envelope, now)
	if err != nil {
		return task.Verified{}, err
	}
	if t.Payload.TaskID != o.TaskID {
		return task.Verified{}, refusal.New(refusal.TaskID, "the offer names task %q, the signed body %q", text.Truncate(o.TaskID), t.Payload.TaskID)
	}
	return t, covers(g, t, o.Lease)
}

// check verifies a task's envelope as of a time of the server, then parses its
// body once and strictly.
func (v Verifier) check(envelope []byte, now time.Time) (task.Verified, error) {
	var p task.Payload
	raw, err := open(task.PayloadType, "", envelope, v.Set.Accepted(), &p)
	if err != nil {
		return task.Verified{}, err
	}
	t := task.Verified{Payload: p, Raw: raw, Digest: schema.SHA256Hex(raw), At: now}
	if err := v.admit(p); err != nil {
		return task.Verified{}, err
	}
	if v.Known != nil && v.Known(p.TaskID, t.Digest) {
		return t, nil
	}
	return t, v.inTime(p, now)
}

// admit checks the fields against this node.
func (v Verifier) admit(p task.Payload) error {
	row, known := p.Type.Info()
	switch {
	case p.V != payloadVersion:
		return refusal.New(trust.ReasonVersion, "version %d of the task format is unsupported", p.V)
	case p.Env != v.ID.Env:
		return refusal.New(trust.ReasonEnvironment, "the task is for another environment")
	case p.NodeID != v.ID.NodeID:
		return refusal.New(refusal.OtherNode, "the task is for another node")
	case p.Incarnation != v.ID.Incarnation:
		return refusal.New(refusal.OtherIncarnation, "the task is for incarnation %d, this is %d", p.Incarnation, v.ID.Incarnation)
	case !schema.IsID(p.TaskID):
		return refusal.New(refusal.TaskID, "the task's id is malformed")
	case !known:
		return refusal.New(refusal.UnknownType, "the task type is unsupported")
	case p.TypeVersion != typeVersion:
		return refusal.New(refusal.UnknownTypeVersion, "version %d of %s is unsupported", p.TypeVersion, p.Type)
	case p.Effect != row.Effect:
		return refusal.New(refusal.WrongEffect, "the effect of %s is %s, not %q", p.Type, row.Effect, text.Truncate(string(p.Effect)))
	case p.ParamsSHA256 != schema.SHA256Hex(p.Params):
		return refusal.New(refusal.ParamsDigest, "the params are not those of the digest")
	case p.MinSetVersion > v.Set.Doc.Version:
		return refusal.New(refusal.SetTooOld, "the task requires verifier set %d, this node has %d", p.MinSetVersion, v.Set.Doc.Version)
	}
	return nil
}

// inTime checks what depends on the time.
func (v Verifier) inTime(p task.Payload, now time.Time) error {
	switch {
	case now.Add(notBeforeSkew).Before(p.NotBefore):
		return refusal.New(refusal.NotYetValid, "the task is valid from %s, the current time is %s", text.FormatTime(p.NotBefore), text.FormatTime(now))
	case now.After(p.ExpiresAt):
		return refusal.New(refusal.Expired, "the task expired at %s, the current time is %s", text.FormatTime(p.ExpiresAt), text.FormatTime(now))
	case p.Effect == task.EffectDestructive && v.Set.Expired(now):
		return refusal.New(refusal.SetExpired, "verifier set %d expired at %s: destructive tasks are refused", v.Set.Doc.Version, text.FormatTime(v.Set.Doc.ExpiresAt))
	}
	return nil
}
