package adminapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/edge"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ReasonPolicyChanged is the reason of a KindDecisionOutdated for a change that was made from another
// policy than the one in use.
const ReasonPolicyChanged = "policy_changed"

// A policyChange returns the policy to store instead of the one in use.
type policyChange func(now record.Policy) (recovery.Policy, error)

// setPolicy stores a policy. A malformed one changes nothing, so the policy in use stays.
func (h recoveries) setPolicy(c *call) (any, error) {
	var p recovery.Policy
	req, err := body(c, edge.Decode, func(r *record.SetPolicy) (err error) {
		if p, err = recovery.DecodePolicy(r.Body); err != nil {
			return err
		}
		return checkReason(r.Reason, !r.DryRun)
	})
	if err != nil {
		return nil, err
	}
	change := func(record.Policy) (recovery.Policy, error) { return p, nil }
	if !req.DryRun {
		return h.change(c, change, req.ExpectedDigest, req.Reason)
	}
	now, err := h.Recovery.Policy(c.Context())
	if err != nil {
		return nil, err
	}
	if now.Digest != p.Digest() && !expects(req.ExpectedDigest, now) {
		return nil, h.outdated(c.Context(), req.ExpectedDigest, now)
	}
	return record.Stored(p)
}

// arm lets the policy in use start repairs.
func (h recoveries) arm(c *call) (any, error) {
	req, err := body(c, edge.Decode, func(r *record.Arm) error { return checkReason(r.Reason, true) })
	if err != nil {
		return nil, err
	}
	return h.change(c, withMode(recovery.ModeArmed), req.ExpectedDigest, req.Reason)
}

// disarm lets the policy in use only record decisions. It expects no policy: repairs stop, whatever
// another operator changed meanwhile.
func (h recoveries) disarm(c *call) (any, error) {
	req, err := body(c, edge.Decode, checkRecoveryChange)
	if err != nil {
		return nil, err
	}
	return h.change(c, disarmed, "", req.Reason)
}

// disarmed is the policy in use with the mode monitor. A policy that cannot be read is replaced by
// the default one: disarming must always work. The list of policies keeps the other one.
func disarmed(now record.Policy) (recovery.Policy, error) {
	if p, err := withMode(recovery.ModeMonitor)(now); err == nil {
		return p, nil
	}
	return recovery.Default(), nil
}

// withMode changes only the mode of the policy in use.
func withMode(m recovery.Mode) policyChange {
	return func(now record.Policy) (recovery.Policy, error) {
		p, err := now.Decode()
		if err != nil {
			return p, err
		}
		p.Mode = m
		return p, p.Validate()
	}
}

// change stores what change makes of the policy in use, if that is the expected one. A change that is
// in effect already is accepted, so that a request may be repeated.
func (h recoveries) change(c *call, change policyChange, expected, reason string) (any, error) {
	var now record.Policy
	stored, err := h.Recovery.ChangePolicy(c.Context(), func(inUse record.Policy) (recovery.Policy, error) {
		now = inUse
		p, err := change(inUse)
		if err == nil && p.Digest() != inUse.Digest && !expects(expected, inUse) {
			err = &schema.Error{Kind: schema.KindDecisionOutdated, Reason: ReasonPolicyChanged}
		}
		return p, err
	}, reason, c.by)
	if schema.KindOf(err) == schema.KindDecisionOutdated { // explained outside of the transaction
		return nil, h.outdated(c.Context(), expected, now)
	}
	return stored, err
}

// expects reports whether the policy in use is the one with the digest. An empty digest expects none.
func expects(digest string, now record.Policy) bool { return digest == "" || digest == now.Digest }

// maxChanges bounds the list of what changed in an error, in characters.
const maxChanges = 2000

// outdated returns the error of a change that expects another policy than the one in use: who stored
// that one, and what it changed.
func (h recoveries) outdated(ctx context.Context, expected string, now record.Policy) error {
	since := fmt.Sprintf("the expected one, with the digest %.12q, is not stored", expected)
	base, err := h.Recovery.PolicyWithDigest(ctx, expected)
	switch {
	case err == nil:
		since = "what changed since " + versionText(base) + ": " + text.Line(strings.Join(recovery.Differences(base.Body, now.Body), "; "), maxChanges)
	case schema.KindOf(err) != schema.KindNotFound:
		return err
	}
	by := ""
	if now.Version > 0 {
		by = fmt.Sprintf(", which %s stored at %s: %s", now.Actor, now.At.UTC().Format(time.RFC3339), now.Reason)
	}
	return schema.NewError(schema.KindDecisionOutdated, "nothing was stored, because another policy is in use: %s%s; %s", versionText(now), by, since).
		WithReason(ReasonPolicyChanged).WithNext("gpuaas recovery policy show > policy.yaml, and make the change again in that file")
}

func versionText(p record.Policy) string {
	if p.Version == 0 {
		return "the default policy"
	}
	return fmt.Sprintf("version %d", p.Version)
}
