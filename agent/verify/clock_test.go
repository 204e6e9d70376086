package verify

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestTimeAheadHeals: the control plane was a day ahead once. While it says so, tasks are
// checked against its time. When it is right again, its answers set the trusted time back, in
// this process and after a restart.
func TestTimeAheadHeals(t *testing.T) {
	t.Parallel()
	s := disk.At(t.TempDir())
	local := time.Now()
	quiet := slog.New(slog.DiscardHandler)
	open := func() *Clock { return OpenClock(func() time.Time { return local }, s, time.Time{}, quiet) }
	c := open()
	ahead := local.Add(20 * time.Hour)
	require.NoError(t, c.admit(ahead, ahead), "the first grant")
	c.observe(ahead)
	require.WithinDuration(t, ahead, open().Now(), 0, "it is stored")

	for range 14 {
		local = local.Add(time.Minute)
		c.Compare(local)
	}
	require.Greater(t, c.Now(), local.Add(19*time.Hour), "one answer proves nothing")
	c.Compare(c.Now()) // a replica that is ahead
	for range 15 {
		local = local.Add(time.Minute)
		c.Compare(local)
	}
	require.Greater(t, c.Now(), local.Add(19*time.Hour), "the time begins again")
	local = local.Add(time.Minute)
	c.Compare(local)
	require.Equal(t, local, c.Now())
	require.WithinDuration(t, local, open().Now(), 0)
}

func TestTimeOfPreviousVersion(t *testing.T) {
	t.Parallel()
	s := disk.At(t.TempDir())
	quiet := slog.New(slog.DiscardHandler)
	legacy := time.Now().Add(-time.Hour)
	require.WithinDuration(t, legacy, OpenClock(time.Now, s, legacy, quiet).Now(), time.Minute)
	require.NoError(t, os.WriteFile(filepath.Join(s.Path, timeFile), []byte("{"), 0o600))
	require.True(t, OpenClock(time.Now, s, legacy, quiet).Now().IsZero(), "a damaged file counts as none")
}

// TestHostileReplicaCannotSetTheTimeAhead: its delegation lasts too long, or its grant is
// ahead of every other clock.
func TestHostileReplicaCannotSetTheTimeAhead(t *testing.T) {
	t.Parallel()
	f := agenttest.NewQuiet(t)
	v := verifierFor(f)
	_, err := v.Verify(f.Granted(f.OfferOf(f.Payload(task.WorkloadCordon, 1, nil), 1), testNonce))
	require.NoError(t, err)
	v.Server = time.Now()
	f.OnGrant = func(g *task.Grant) { g.ServerTime = time.Now().Add(23 * time.Hour) }
	o := f.OfferOf(f.Payload(task.WorkloadCordon, 2, nil), 1)
	_, err = v.Verify(f.Granted(o, testNonce))
	require.Equal(t, "grant_time_ahead", schema.AsError(err).Reason)
	require.WithinDuration(t, time.Now(), v.Clock.Now(), time.Minute)
	v.Server = time.Now().Add(23 * time.Hour)
	_, err = v.Verify(f.Granted(o, testNonce))
	require.NotEqual(t, "grant_time_ahead", schema.AsError(err).Reason, "the node was off for a day, and its clock is wrong")

	_, err = v.delegate(trust.LeaseKey{V: 1, Env: v.ID.Env, KeyID: "k", Public: make([]byte, 32), NotBefore: time.Now(), NotAfter: time.Now().Add(26 * time.Hour)})
	require.Equal(t, "grant_key_lifetime", schema.AsError(err).Reason)
}
