package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Reasons of KindTaskRefused, beside those of its documents (dsse.go), of its
// grant (grant.go) and of verifier sets (sets.go).
const (
	refusedNode        = "other_node"
	refusedIncarn      = "other_incarnation"
	refusedEarly       = "not_yet_valid"
	refusedExpired     = "expired"
	refusedTask        = "unknown_type"
	refusedTypeVersion = "unknown_type_version"
	refusedEffect      = "wrong_effect"
	refusedID          = "task_id_mismatch"
	refusedReplay      = "replayed_seq"
	refusedDigest      = "other_payload"
	refusedParams      = "bad_params"
	refusedParamsSum   = "params_digest"
	refusedExpectation = "state_expectation"
)

// Limits of acceptance.
const (
	payloadVersion = 1
	typeVersion    = 1
	// notBeforeSkew covers the difference between the clocks of the parts of the
	// control plane: the node's own does not count.
	notBeforeSkew    = 5 * time.Minute
	maxRefusalDetail = 256
)

// taskDocument is the kind of a signed task.
func taskDocument() document { return document{payloadType: task.PayloadType} }

// verifier decides which offers are tasks for this node. It belongs to one poll.
type verifier struct {
	id    trust.Identity
	set   heldSet
	nonce string // of the poll
	clock *trustedClock
	// known reports whether the journal holds this very task: then its time has
	// not to be right any more, because nothing new is begun. Nil knows none.
	known func(taskID, digest string) bool
}

// verified is a payload whose signature and fields were checked.
type verified struct {
	payload task.Payload
	raw     []byte    // the signed bytes
	digest  string    // hex SHA-256 of raw
	at      time.Time // the time by which it was judged
}

func refuse(reason, format string, args ...any) error {
	return schema.NewError(schema.KindTaskRefused, format, args...).WithReason(reason)
}

// judge accepts an offer or says why not: its grant is fresh and for this poll,
// its task is signed and for this node, and the two belong together. Every error
// is KindTaskRefused with a reason. It does not look at the sequence: that needs
// the journal.
func (v verifier) judge(o wire.TaskOffer) (verified, error) {
	g, now, err := v.grant(o)
	if err != nil {
		return verified{}, err
	}
	task, err := v.check(o.Envelope, now)
	if err != nil {
		return verified{}, err
	}
	if task.payload.TaskID != o.TaskID {
		return verified{}, refuse(refusedID, "the offer names task %q, the signed body %q", clip(o.TaskID), task.payload.TaskID)
	}
	return task, g.covers(task, o.Lease)
}

// check verifies a task's envelope as of a time of the server, then parses its
// body once and strictly.
func (v verifier) check(envelope []byte, now time.Time) (verified, error) {
	var p task.Payload
	raw, _, err := taskDocument().read(envelope, v.set.accepting(now), &p)
	if err != nil {
		return verified{}, err
	}
	sum := sha256.Sum256(raw)
	task := verified{payload: p, raw: raw, digest: hex.EncodeToString(sum[:]), at: now}
	if err := v.admit(p); err != nil {
		return verified{}, err
	}
	if v.known != nil && v.known(p.TaskID, task.digest) {
		return task, nil
	}
	return task, v.inTime(p, now)
}

// admit checks the fields against this node.
func (v verifier) admit(p task.Payload) error {
	row, known := p.Type.Info()
	switch {
	case p.V != payloadVersion:
		return refuse(refusedVersion, "version %d of the task format is not known here", p.V)
	case p.Env != v.id.Env:
		return refuse(refusedEnv, "the task is for another environment")
	case p.NodeID != v.id.NodeID:
		return refuse(refusedNode, "the task is for another node")
	case p.Incarnation != v.id.Incarnation:
		return refuse(refusedIncarn, "the task is for incarnation %d, this is %d", p.Incarnation, v.id.Incarnation)
	case !schema.IsID(p.TaskID):
		return refuse(refusedID, "the task's id is malformed")
	case !known:
		return refuse(refusedTask, "the task type is not known here")
	case p.TypeVersion != typeVersion:
		return refuse(refusedTypeVersion, "version %d of %s is not known here", p.TypeVersion, p.Type)
	case p.Effect != row.Effect:
		return refuse(refusedEffect, "the effect of %s is %s, the task says %q", p.Type, row.Effect, clip(string(p.Effect)))
	case p.ParamsSHA256 != digestOf(p.Params):
		return refuse(refusedParamsSum, "the params are not those of the digest")
	case p.MinSetVersion > v.set.version:
		return refuse(refusedSetBehind, "the task wants verifier set %d, this node has %d", p.MinSetVersion, v.set.version)
	}
	return nil
}

// inTime checks what depends on the time.
func (v verifier) inTime(p task.Payload, now time.Time) error {
	switch {
	case now.Add(notBeforeSkew).Before(p.NotBefore):
		return refuse(refusedEarly, "the task is valid from %s, it is %s", stamp(p.NotBefore), stamp(now))
	case now.After(p.ExpiresAt):
		return refuse(refusedExpired, "the task expired at %s, it is %s", stamp(p.ExpiresAt), stamp(now))
	case p.Effect == task.EffectDestructive && v.set.expired(now):
		return refuse(refusedSetExpired, "verifier set %d expired at %s: nothing destructive is done by it", v.set.version, stamp(v.set.expires))
	}
	return nil
}

// digestOf is the hex SHA-256 of bytes.
func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// clip bounds text that came from outside.
func clip(s string) string {
	if len(s) > maxRefusalDetail {
		return s[:maxRefusalDetail] + "…"
	}
	return s
}
