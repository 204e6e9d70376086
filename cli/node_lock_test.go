package cli

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// postLock locks or unlocks a node's identity, as the API does.
func (a *fakeAPI) postLock(w http.ResponseWriter, r *http.Request) {
	var req struct{ Reason string }
	n := a.find(w, r)
	if n == nil || !a.read(w, r, &req) {
		return
	}
	verb := r.PathValue("verb")
	a.decided = append(a.decided, verb+" "+n.Host+" "+req.Reason)
	switch {
	case verb == "lock":
		n.IdentityLock = &trust.IdentityLock{Reason: trust.LockedByOperator, Since: start(), By: "alice", Note: req.Reason}
	case n.IdentityLock != nil && n.IdentityLock.Reason != trust.LockedByOperator:
		a.fail(w, schema.NewError(schema.KindInvalidRequest, "node %s cannot be unlocked: %s", n.Host, n.IdentityLock.Message()).
			WithReason("reissue_required").WithNext(n.IdentityLock.Next(n.Host)))
		return
	default:
		n.IdentityLock = nil
	}
	a.answer(w, http.StatusOK, *n)
}

func TestNodeLock(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.golden("lock", "node", "lock", "gpu-17", "--reason", "key leaked")
	h.golden("lock-again", "node", "lock", "gpu-17", "--reason", "key leaked")
	h.golden("lock-show", "node", "show", "gpu-17")
	require.Equal(t, schema.ExitRefused, h.run("node", "uncordon", "gpu-17", "--dry-run"))
	require.Contains(t, h.out.String(), "its identity is locked by alice: key leaked")
	require.Contains(t, h.out.String(), "next: gpuaas node unlock gpu-17 --reason TEXT")
	h.golden("unlock", "node", "unlock", "gpu-17", "--reason", "checked")
	require.Equal(t, []string{"lock gpu-17 key leaked", "lock gpu-17 key leaked", "unlock gpu-17 checked"}, h.api.decided)
	h.golden("unlock-again", "node", "unlock", "gpu-17", "--reason", "checked")
	h.api.nodes[0].IdentityLock = &trust.IdentityLock{Reason: trust.LockedBySessions, Since: start()}
	h.golden("unlock-refused", "node", "unlock", "gpu-17", "--reason", "checked")
	h.golden("usage-lock-reason", "node", "lock", "gpu-17")
	h.golden("usage-lock-both", "node", "lock", "gpu-17", "--selector", "rack=r7", "--reason", "x")
	h.golden("usage-lock-parallel", "node", "lock", "gpu-17", "--max-parallel", "2", "--reason", "x")
}

// A lock of many nodes asks first, continues after a failure and reports each node.
func TestNodeLockMany(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.api.nodes = nil
	for n := 1; n <= 3; n++ {
		view := busy()
		view.ID, view.Host = parkedOn(n).NodeID, parkedOn(n).Host
		h.api.nodes = append(h.api.nodes, view)
	}
	h.api.nodes[1].IdentityLock = &trust.IdentityLock{Reason: trust.LockedBySerial, Since: start()}
	many := func(name, verb string, more ...string) {
		h.golden(name, append([]string{"node", verb, "--selector", "rack=r7", "--max-parallel", "1", "--reason", "rack opened"}, more...)...)
	}
	many("lock-many-unconfirmed", "lock")
	require.Empty(t, h.api.decided)
	many("unlock-many", "unlock", "--yes")
	many("lock-many-json", "lock", "--yes", "-o", "json")
	require.Len(t, h.api.decided, 6)
	h.api.nodes[0].IdentityLock = nil
	h.api.nodes[2].IdentityLock, h.api.nodes[2].IdentityAlarm = nil, &trust.IdentityAlarm{Reason: trust.AlarmToken}
	h.api.nodes[1].IdentityLock.Reason = trust.LockedByOperator
	many("unlock-many-unchanged", "unlock", "--yes")
}
