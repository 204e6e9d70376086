package health_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
)

func TestPhaseText(t *testing.T) {
	t.Parallel()
	names := []string{"Unknown", "Healthy", "Unhealthy", "WaitingReboot", "Drain", "Replace"}
	require.Len(t, health.Phases(), len(names))
	for i, p := range health.Phases() {
		require.Equal(t, names[i], p.String())
		text, err := json.Marshal(map[string]health.Phase{"phase": p})
		require.NoError(t, err)
		require.JSONEq(t, `{"phase":"`+names[i]+`"}`, string(text))
		var got map[string]health.Phase
		require.NoError(t, json.Unmarshal(text, &got))
		require.Equal(t, p, got["phase"])
	}
	var zero health.Phase
	require.Equal(t, health.PhaseUnknown, zero)
}

func TestPhaseRejectsOtherText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`"healthy"`, `""`, `"Failed"`, `3`} {
		var p health.Phase
		require.Error(t, json.Unmarshal([]byte(text), &p), text)
	}
	_, err := health.ParsePhase("Broken")
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest, Reason: "unknown_phase"})
	_, err = json.Marshal(health.Phase(9))
	require.Error(t, err)
	require.Equal(t, "Invalid", health.Phase(-1).String())
}
