package audit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
)

func chain(n int) []audit.Event {
	var out []audit.Event
	prev := ""
	for i := range n {
		e := audit.Event{Stream: "s", Seq: int64(i + 1), At: time.Unix(int64(i), 123456789), Actor: "a",
			Action: "nodes.drain", Target: "s", Result: audit.Accepted, PrevHash: prev, Detail: map[string]string{"b": "1", "a": "2"}}
		e.Hash = e.ComputeHash()
		prev = e.Hash
		out = append(out, e)
	}
	return out
}

func TestAuditChain(t *testing.T) {
	t.Parallel()
	events := chain(5)
	require.NoError(t, audit.VerifyChain(nil, events))
	require.NoError(t, audit.VerifyChain(&events[2], events[3:]))

	t.Run("an edited row is found", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		bad[2].Reason = "something else"
		require.ErrorContains(t, audit.VerifyChain(nil, bad), "row 3 was changed")
	})
	t.Run("a row restamped with a new hash is found at its successor", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		bad[2].Actor = "mallory"
		bad[2].Hash = bad[2].ComputeHash()
		require.ErrorContains(t, audit.VerifyChain(nil, bad), "row 4 does not continue row 3")
	})
	t.Run("a cut row is found", func(t *testing.T) {
		t.Parallel()
		bad := chain(5)
		require.ErrorContains(t, audit.VerifyChain(nil, append(bad[:2:2], bad[3:]...)), "row 3 is missing")
	})
	t.Run("the time is hashed at the precision the database keeps", func(t *testing.T) {
		t.Parallel()
		e := chain(1)[0]
		e.At = e.At.Truncate(time.Microsecond).In(time.FixedZone("x", 3600))
		require.Equal(t, e.Hash, e.ComputeHash())
	})
}
