package repair

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestResetOfMissingGPU: if one of the GPUs is not there, none is reset.
func TestResetOfMissingGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	_, err := m.run(task.ResetParams{GPUs: []string{firstUUID, "GPU-aaaa"}})
	require.ErrorContains(t, err, "the node has 1 of the 2 GPUs to reset")
	require.Equal(t, ReasonNoGPU, schema.AsError(err).Reason)
	require.Equal(t, []string{""}, m.calls())
	require.Empty(t, m.done)
}

// TestResetStops: the tries of a GPU that stays open end.
func TestResetStops(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.reset.SMI = agenttest.Stub(t, `cd `+m.dir+`
case "$1" in
--query-gpu=uuid,persistence_mode) echo "`+firstUUID+`, Disabled" ;;
--query-compute-apps=*) ;;
*) echo "$*" >> calls; [ "$(wc -l < calls)" -gt 9 ] || { echo "GPU 00000000:3B:00.0 is currently in use by another client"; exit 3; } ;;
esac
exit 0`)
	_, err := m.run(task.ResetParams{})
	require.ErrorContains(t, err, "reset_failed: ")
	require.Len(t, slices.DeleteFunc(m.calls(), func(c string) bool { return c != "--gpu-reset" }), resetTries)
	m.restored()
}
