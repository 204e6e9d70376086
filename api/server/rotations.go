package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/rotation"
	"github.com/gpuaas/gpuaas/schema/text"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// rotationStore implements adminapi.Rotations.
type rotationStore struct {
	*store.Rotations

	sets *store.Identities
}

// NewestSet implements adminapi.Rotations.
func (s rotationStore) NewestSet(ctx context.Context) (trust.StoredSet, error) {
	return s.sets.NewestSet(ctx)
}

// rotationSlow is how long a phase waits for nodes before it is reported.
const rotationSlow = 15 * time.Minute

// setFault reports the newest verifier set if it expires soon.
func (a *app) setFault(ctx context.Context) []wire.ControlPlaneFault {
	set, err := a.sets.NewestSet(ctx)
	if err != nil {
		return nil
	}
	return expiryFault(set, time.Now())
}

// openRotationFault reports an open rotation that needs an operator.
func openRotationFault(ctx context.Context, rotations *store.Rotations) ([]wire.ControlPlaneFault, error) {
	r, now, err := rotations.OpenRotation(ctx)
	if schema.KindOf(err) == schema.KindNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := rotations.RotationProgress(ctx, r)
	if err != nil {
		return nil, err
	}
	return rotationFault(rotation.Describe(r, p, now), now), nil
}

// expiryFault reports a set whose renewal is overdue: it is renewed after half of its
// lifetime.
func expiryFault(stored trust.StoredSet, now time.Time) []wire.ControlPlaneFault {
	set, err := trust.ParseVerifierSet(stored.Document)
	if err != nil {
		return nil // the signer's check reports it
	}
	left := set.Doc.ExpiresAt.Sub(now)
	if left > set.Doc.ExpiresAt.Sub(set.Doc.IssuedAt)/3 {
		return nil
	}
	f := wire.ControlPlaneFault{Component: "verifier-set", Reason: "expires_soon",
		Message: fmt.Sprintf("verifier set %d expires in %s, and its renewal is overdue; then nodes reject destructive tasks", stored.Version, lifecycle.Span(left)),
		Next:    "check that a gpuaas-worker has the rotator's login (GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE); or run: gpuaas admin setup"}
	if left <= 0 {
		f.Reason = "expired"
		f.Message = fmt.Sprintf("verifier set %d has expired: nodes reject destructive tasks", stored.Version)
	}
	return []wire.ControlPlaneFault{f}
}

// rotationFault reports why a rotation needs an operator.
func rotationFault(v rotation.View, now time.Time) []wire.ControlPlaneFault {
	f := wire.ControlPlaneFault{Component: "rotation", Next: "gpuaas rotate show"}
	slow, what := now.Sub(v.PhaseSince) > rotationSlow, fmt.Sprintf("the rotation of %s is in phase %s", v.Kind, v.Phase)
	switch {
	case slices.Contains(v.Blockers, rotation.BlockedWorker):
		f.Reason = "stalled"
		f.Message = fmt.Sprintf("%s, and no worker has looked at it for %s", what, lifecycle.Span(now.Sub(v.CheckedAt)))
		f.Next = "check that a gpuaas-worker has the rotator's login (GPUAAS_VAULT_ROTATOR_ROLE_ID_FILE); then: gpuaas rotate resume --reason TEXT"
	case v.Failure != "":
		message, next := v.Cause()
		f.Reason, f.Message, f.Next = "failing", what+" and cannot continue: "+message, cmp.Or(next, f.Next)
	case v.Paused:
		f.Reason, f.Message, f.Next = string(rotation.BlockedPaused), what+" and is paused", "gpuaas rotate resume --reason TEXT"
	case slices.Equal(v.Blockers, []rotation.Blocker{rotation.BlockedApproval}):
		f.Reason, f.Message = string(rotation.BlockedApproval), what+" and waits for an approval; the next phase cannot be undone"
		f.Next = "gpuaas rotate approve --reason TEXT"
	case slow && slices.Contains(v.Blockers, rotation.BlockedReload):
		f.Reason = string(rotation.BlockedReload)
		f.Message = fmt.Sprintf("%s, and %d of %d replicas of the API have not read the node CAs", what, v.Progress.Replicas-v.Progress.Reloaded, v.Progress.Replicas)
		f.Next = "check in the log of each gpuaas-api why it cannot read from Vault; then restart it or stop it"
	case slow && slices.Contains(v.Blockers, rotation.BlockedNodes):
		f.Reason = string(rotation.BlockedNodes)
		left := v.Progress.Nodes - v.Progress.Confirmed - v.Progress.Waived
		f.Message = fmt.Sprintf("%s and waits for %s: %s", what, text.Count(left, "node"), waitingHosts(v.Progress.Waiting))
		f.Next = waiveNext(v.Progress.Waiting, now)
	default:
		return nil
	}
	return []wire.ControlPlaneFault{f}
}

// waiveNext is the next step for nodes that do not confirm: those that are offline may be
// waived, and those that send heartbeats have a fault.
func waiveNext(nodes []rotation.Waiting, now time.Time) string {
	for _, n := range nodes {
		if n.LastHeartbeatAt != nil && now.Sub(*n.LastHeartbeatAt) < lifecycle.SilentAfter {
			return "gpuaas doctor " + n.Host + "; to continue without the node: gpuaas rotate waive --node " + n.Host + " --reason TEXT"
		}
	}
	return "gpuaas rotate waive --offline --reason TEXT; a node that returns loads the sets that it missed, and recovers if its CA is retired"
}

// waitingHosts lists the first nodes that a rotation waits for.
func waitingHosts(nodes []rotation.Waiting) string {
	const shown = 5
	var hosts []string
	for _, n := range nodes[:min(shown, len(nodes))] {
		hosts = append(hosts, n.Host)
	}
	if len(nodes) > shown {
		hosts = append(hosts, "…")
	}
	return strings.Join(hosts, ", ")
}
