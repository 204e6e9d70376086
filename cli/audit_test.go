package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// chain makes n good rows of a stream.
func chain(stream string, n int) []audit.Event {
	var out []audit.Event
	prev := ""
	for i := range n {
		v := audit.Event{Stream: stream, Seq: int64(i + 1), At: start().Add(time.Duration(i) * time.Minute), Actor: "alice@laptop",
			Action: audit.ActionName(lifecycle.ActionDrain), Target: stream, Result: audit.Accepted, Reason: "RMA-4411", PrevHash: prev}
		if i == 1 {
			v.Action, v.Target, v.Detail = audit.Decision, operationID, map[string]string{"decision": "force", "phase": "drain"}
		}
		v.Hash = v.ComputeHash()
		prev = v.Hash
		out = append(out, v)
	}
	return out
}

func TestAudit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		with func(events []audit.Event) []audit.Event
	}{
		"list":           {nil, nil},
		"list-node":      {[]string{"--node", "gpu-17", "--limit", "2"}, nil},
		"list-wide":      {[]string{"-o", "wide"}, nil},
		"list-json":      {[]string{"--node", "system", "-o", "json"}, nil},
		"verify":         {[]string{"--verify"}, nil},
		"verify-json":    {[]string{"--verify", "-o", "json"}, nil},
		"verify-node":    {[]string{"--verify", "--node", "gpu-17"}, nil},
		"verify-changed": {[]string{"--verify"}, func(e []audit.Event) []audit.Event { e[3].Reason = "nothing"; return e }},
		"verify-changed-json": {[]string{"--verify", "-o", "json"}, func(e []audit.Event) []audit.Event {
			e[3].Reason = "nothing"
			return e
		}},
		"verify-missing": {[]string{"--verify"}, func(e []audit.Event) []audit.Event { return append(e[:2:2], e[3:]...) }},
		"verify-first":   {[]string{"--verify"}, func(e []audit.Event) []audit.Event { return e[1:] }},
		"verify-rehashed": {[]string{"--verify"}, func(e []audit.Event) []audit.Event {
			e[3].Reason = "nothing"
			e[3].Hash = e[3].ComputeHash()
			return e
		}},
		"verify-foreign": {[]string{"--verify"}, func([]audit.Event) []audit.Event { return chain("other", 5) }},
		"unknown-node":   {[]string{"--node", "gpu-99"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			h.api.pageSize = 2
			h.api.streams = []string{nodeID, "system"}
			h.api.audit = map[string][]audit.Event{nodeID: chain(nodeID, 5), "system": chain("system", 1)}
			if tc.with != nil {
				h.api.audit[nodeID] = tc.with(h.api.audit[nodeID])
			}
			h.golden("audit-"+name, append([]string{"audit"}, tc.args...)...)
		})
	}
	t.Run("a page that repeats ends", func(t *testing.T) {
		t.Parallel()
		h := setup(t)
		h.api.pageSize, h.api.repeats = 1, true
		h.api.streams = []string{nodeID}
		h.api.audit[nodeID] = chain(nodeID, 3)
		require.Equal(t, schema.ExitFailed, h.run("audit", "--verify"))
	})
}
