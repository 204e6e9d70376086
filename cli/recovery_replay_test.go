package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
	"github.com/gpuaas/gpuaas/schema/recovery/record"
	"github.com/gpuaas/gpuaas/schema/signal"
)

// TestHostileRecord: a record that cannot be decoded or replayed in a moment is an error with a kind.
func TestHostileRecord(t *testing.T) {
	t.Parallel()
	facts := jsonOf(t, record.Facts{At: start(), Policy: storedPolicy(t, recovery.ModeMonitor, 0)})
	xid := health.Signal{SignalID: operationID, Type: health.ConditionSignal("gpu_xid"), NodeID: nodeID, At: start(), Status: health.Unhealthy}
	for name, c := range map[string]struct {
		facts string
		at    time.Time
		want  string
	}{
		"no time":     {facts, time.Time{}, "bad_record"},
		"year 9999":   {strings.Replace(facts, "2026-03-01", "9999-03-01", 1), start(), "bad_record"},
		"no policy":   {strings.Replace(facts, `"samples":3`, `"samples":-3`, 1), start(), "policy_unreadable"},
		"wrong types": {`{"at": 7, "nodes": "x"}`, start(), "cannot be parsed"},
		"wrong time":  {strings.Replace(facts, "2026-03-01", "2026-99-01", 1), start(), "cannot be parsed"},
		"a list":      {`[]`, start(), "cannot be parsed"},
	} {
		xid.At = c.at
		h, _ := recovering(t, map[string]any{"GET " + recoveryPath + "/facts": json.RawMessage(c.facts), "GET /api/v1/admin/signals": signal.List{Signals: []health.Signal{xid}}})
		file := filepath.Join(t.TempDir(), "policy.yaml")
		require.NoError(t, os.WriteFile(file, []byte("samples: 4\n"), 0o600))
		code := h.run("recovery", "replay", "--policy", file)
		require.Contains(t, []int{schema.ExitFailed, schema.ExitRefused}, code, name)
		require.Contains(t, h.err.String(), c.want, name)
	}
}
