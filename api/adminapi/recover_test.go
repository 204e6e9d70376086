package adminapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
