package agent

import (
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/refusal"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// removalCheck returns the agent's identity.Config.CheckRemoval. It uses the node's
// verifier set, which must not have expired, as for destructive tasks. The time is the
// latest that a server proved or sent, so that an expired removal stays expired. A wrong time
// that is ahead delays a removal until the server's answers have contradicted it.
func removalCheck(a *Agent) func(id trust.Identity, document []byte) error {
	return func(id trust.Identity, document []byte) error {
		now, set := a.clock.Now(), a.sets.Current()
		for _, t := range []time.Time{a.clock.Floor(), a.sets.Clock.Now()} {
			if t.After(now) {
				now = t
			}
		}
		if set.Expired(now) {
			return refusal.New(refusal.SetExpired, "verifier set %d expired at %s: no removal is accepted", set.Doc.Version, text.FormatTime(set.Doc.ExpiresAt))
		}
		r, err := trust.CheckRemoval(document, set.Accepted(), id, now)
		if err == nil {
			a.log.Warn("the control plane removed this node", "operation_id", r.OperationID, "issued_at", text.FormatTime(r.IssuedAt))
		}
		return err
	}
}
