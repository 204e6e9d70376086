package agent

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// The agent keeps the checkpoint of the audit trail with the greatest number, also over a
// restart, and its polls carry it.
func TestKeepsTheNewestCheckpoint(t *testing.T) {
	t.Parallel()
	checkpoint := func(env string, number int64) string {
		return audit.Checkpoint{Env: env, Number: number, Hash: strings.Repeat("0a", 32), At: time.Unix(1_800_000_000, 0), KeyID: "k.v1", Signature: []byte("s")}.String()
	}
	var sent atomic.Value
	var replaces atomic.Bool
	f := agenttest.New(t)
	f.Replaces = replaces.Load
	f.OnEarly = func() bool { return true }
	f.Checkpoint = func() string { return sent.Load().(string) }
	kept := func() (text string) {
		f.Note(func() { text = f.Kept })
		return text
	}
	sent.Store(checkpoint("test", 7))
	c := configFor(f)
	a := start(t, c, Deps{})
	eventually(t, "checkpoint 7", func() bool { return kept() == checkpoint("test", 7) })
	for _, ignored := range []string{checkpoint("test", 6), checkpoint("prod", 9), "x"} {
		sent.Store(ignored)
		polls := a.polls.Load()
		eventually(t, "further polls", func() bool { return a.polls.Load() > polls+2 })
		require.Equal(t, checkpoint("test", 7), kept())
	}
	sent.Store(checkpoint("test", 8))
	eventually(t, "checkpoint 8", func() bool { return kept() == checkpoint("test", 8) })
	a.halt()

	f.Note(func() { f.Kept = "" })
	sent.Store(checkpoint("test", 1))
	start(t, c, Deps{})
	eventually(t, "checkpoint 8 of the process before", func() bool { return kept() == checkpoint("test", 8) })

	// A false one with the greatest number does not exclude all others.
	sent.Store(checkpoint("test", math.MaxInt64))
	eventually(t, "the false checkpoint", func() bool { return kept() == checkpoint("test", math.MaxInt64) })
	sent.Store(checkpoint("test", 9))
	replaces.Store(true)
	eventually(t, "checkpoint 9", func() bool { return kept() == checkpoint("test", 9) })
	replaces.Store(false)
	sent.Store(checkpoint("test", 10))
	eventually(t, "checkpoint 10", func() bool { return kept() == checkpoint("test", 10) })
}
