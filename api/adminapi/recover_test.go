package adminapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

// TestRecover: a repair is checked before anything starts, and one that deletes the machine needs the
// role of a termination.
func TestRecover(t *testing.T) {
	d := parked()
	d.tokens = tokensFile(t, tokenLine("olga", "operator"), tokenLine("ada", "admin"))
	for body, code := range map[string]int{
		`{"options":{"recovery":{"rungs":["pray"]}}}`:                                    http.StatusBadRequest,
		`{"options":{"recovery":{"rungs":["reboot"],"approve":["reset_gpu"]}}}`:          http.StatusBadRequest,
		`{"options":{"recovery":{"rungs":["reboot","replace"]}}}`:                        http.StatusForbidden,
		`{"options":{"recovery":{"rungs":["reset_gpu","reboot"],"approve":["reboot"]}}}`: http.StatusAccepted,
	} {
		assert.Equal(t, code, d.as(t, "token-of-olga", http.MethodPost, "/nodes/gpu-1/recover", body).Code, body)
	}
	w := d.as(t, "token-of-ada", http.MethodPost, "/nodes/gpu-1/recover", `{"options":{"recovery":{"rungs":["replace"]}}}`)
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	require.Equal(t, []recovery.Rung{recovery.RungReplace}, d.submitted.Options.Recovery.Rungs)
	w = d.as(t, "token-of-ada", http.MethodPost, "/nodes/gpu-1/drain", `{"options":{"recovery":{"rungs":["reboot"]}}}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
}

// TestApprovalOfReplacement: who may not delete a machine may not approve that a repair does it.
func TestApprovalOfReplacement(t *testing.T) {
	d := parked()
	d.tokens = tokensFile(t, tokenLine("olga", "operator"), tokenLine("ada", "admin"))
	d.status.Operation.Action = lifecycle.ActionRecover
	path := "/operations/" + d.status.Operation.OperationID + "/"
	at := func(phase string) {
		d.status.Operation.Phases = []lifecycle.Phase{{Name: lifecycle.PhaseReboot}, {Name: lifecycle.PhaseApproveReplace}}
		d.status.Operation.Stuck = &lifecycle.Stuck{Phase: phase}
		d.resolved = nil
	}
	retry := func(who, body string) int {
		return d.as(t, "token-of-"+who, http.MethodPost, path+"retry", body).Code
	}
	const reason = `{"reason":"TCK-9"}`
	at(lifecycle.PhaseApproveReplace)
	require.Equal(t, http.StatusForbidden, retry("olga", reason))
	require.Equal(t, http.StatusForbidden, retry("olga", `{"reason":"TCK-9","phase":"approve-replace"}`))
	require.Empty(t, d.resolved)
	require.Equal(t, http.StatusOK, d.as(t, "token-of-olga", http.MethodPost, path+"skip", reason).Code, "anyone may refuse it")
	require.Equal(t, http.StatusOK, retry("ada", reason))

	at(lifecycle.PhaseReboot)
	require.Equal(t, http.StatusOK, retry("olga", reason))
	require.Equal(t, lifecycle.PhaseReboot, d.resolved[0].Phase, "it is for the phase that was read")
	d.status.Operation.Stuck = nil
	require.Equal(t, http.StatusForbidden, retry("olga", reason), "the phase is not known")
}
