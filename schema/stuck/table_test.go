package stuck_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/stuck"
)

// TestTable: each row is complete, and its first option does no harm.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, r := range stuck.Table() {
		require.NotEmpty(t, r.Cause, r.Name)
		require.NotEmpty(t, r.Probes, r.Name)
		require.NotEmpty(t, r.Reason, r.Name)
		require.NotEmpty(t, r.When, r.Name)
		require.NotEqual(t, lifecycle.AttentionNone, r.WaitingOn, r.Name)
		require.NotEmpty(t, r.WaitingOn, r.Name)
		require.NotEmpty(t, r.Options, r.Name)
		require.Equal(t, lifecycle.HarmNone, r.Options[0].Harm, r.Name)
		if r.Scope == stuck.ScopeNode {
			require.NotEmpty(t, r.States, r.Name)
		}
		for _, o := range r.Options {
			require.NotEmpty(t, o.Command, r.Name)
			require.NotEmpty(t, o.Does, r.Name)
		}
	}
}

// TestLimits are the limits that operators rely on.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]time.Duration{
		stuck.RowPending: 5 * time.Minute, stuck.RowProvisioning: 10 * time.Minute, stuck.RowBootstrapping: 5 * time.Minute,
		stuck.RowSilent: 5 * time.Minute, stuck.RowDraining: 30 * time.Minute, stuck.RowTerminating: 5 * time.Minute,
	} {
		rows := stuck.Table()
		for _, r := range rows {
			if r.Name == name {
				require.Equal(t, want, r.After, name)
			}
		}
		require.True(t, slices.ContainsFunc(rows, func(r stuck.Row) bool { return r.Name == name }), name)
	}
}

// TestStuck fills in the node's name.
func TestStuck(t *testing.T) {
	t.Parallel()
	r, ok := stuck.Find(stuck.RowSilent, stuck.ScopeNode)
	require.True(t, ok)
	at := time.Now()
	s := r.Stuck("gpu-17", "no heartbeat", "the switch of its rack failed", at)
	require.Equal(t, "gpuaas doctor gpu-17", s.Next)
	require.Equal(t, "the switch of its rack failed", s.Cause)
	require.Equal(t, at, s.Since)
	require.NotContains(t, s.Options[1].Command, "NODE")
	require.Contains(t, r.Options[0].Command, "NODE", "the table itself stays as it is")
}
