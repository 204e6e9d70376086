package agent

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// lastArtifacts are those of the last heartbeat with some. The caller holds the lock of f.
func lastArtifacts(f *agenttest.API) (found map[string]string) {
	for _, h := range f.Heartbeats {
		if h.Artifacts != nil {
			found = h.Artifacts
		}
	}
	return found
}

// The artifacts are in a heartbeat soon after the start.
func TestArtifactsInHeartbeats(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	start(t, configFor(f), Deps{Artifacts: func(context.Context) map[string]string { return map[string]string{"kernel": "6.8"} }})
	f.Until("the artifacts", func() bool { return lastArtifacts(f)["kernel"] == "6.8" })
}

// A server of an earlier version refuses the field. It gets heartbeats without it at once.
func TestServerWithoutArtifacts(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	refused := 0
	f.OnWait = func(int) error {
		refuse := false
		f.Note(func() {
			if n := len(f.Heartbeats); n > 0 && f.Heartbeats[n-1].Artifacts != nil && n > refused {
				refuse, refused = true, n
			}
		})
		if refuse {
			return schema.NewError(schema.KindInvalidRequest, "malformed request: json: unknown field \"artifacts\"")
		}
		return nil
	}
	start(t, configFor(f), Deps{Artifacts: func(context.Context) map[string]string { return map[string]string{"kernel": "6.8"} }})
	f.Until("a heartbeat without artifacts", func() bool {
		n := len(f.Heartbeats)
		return refused > 0 && n > refused && f.Heartbeats[n-1].Artifacts == nil
	})
}

// TestArtifactReportsDue: the rules of when a heartbeat has the artifacts.
func TestArtifactReportsDue(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := artifactReports{}
	require.Nil(t, r.due(at, 0), "nothing was read yet")
	one := map[string]string{"kernel": "6.8"}
	r.now = one
	require.Equal(t, one, r.due(at, 0))
	require.False(t, r.answered(one, at, errors.New("connection reset")))
	require.Equal(t, one, r.due(at, 0), "the server may not have it")
	require.False(t, r.answered(one, at, nil))
	r.now = maps.Clone(one)
	require.Nil(t, r.due(at.Add(time.Minute), 0), "nothing new")
	require.NotNil(t, r.due(at.Add(wire.ArtifactsInterval-time.Minute), time.Minute), "the poll lasts until the report is due")
	r.now = map[string]string{"kernel": "6.9"}
	require.Equal(t, r.now, r.due(at.Add(time.Minute), 0))
	require.True(t, r.answered(r.now, at, schema.NewError(schema.KindInvalidRequest, "unknown field")))
	require.Nil(t, r.due(at.Add(time.Minute), 0), "an older server")
	require.NotNil(t, r.due(at.Add(wire.ArtifactsInterval), 0), "which may be upgraded meanwhile")
	require.False(t, r.answered(nil, at, schema.NewError(schema.KindInvalidRequest, "another field")))
}

// The configured files, the CA bundle and the binary are read.
func TestConfiguredArtifacts(t *testing.T) {
	t.Parallel()
	c := configFor(agenttest.New(t))
	c.Artifacts = c.NodeCABundlePath + "=node_ca"
	require.NoError(t, c.Validate())
	read, err := c.artifacts(c.CABundlePath)
	require.NoError(t, err)
	found := read(t.Context())
	require.Len(t, found["ca_bundle"], 64)
	require.Equal(t, found["ca_bundle"], found["agent_binary"])
	require.Len(t, found["node_ca"], 64)
	c.Artifacts = "relative=x"
	require.ErrorContains(t, c.Validate(), "GPUAAS_ARTIFACTS")
}
