package release

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

func TestUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, "v2.0.0", m.result.Version)
	require.Equal(t, []string{"v1.0.0", "v2.0.0"}, m.ran)

	m.order(m.publish("v3.0.0", good))
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, []string{"v1.0.0", "v2.0.0", "v2.0.0", "v3.0.0"}, m.ran, "v2.0.0 stayed until v3.0.0")
	left, err := os.ReadDir(filepath.Join(m.dir, "state", folder))
	require.NoError(t, err)
	require.Len(t, left, 1, "replaced releases are removed")

	m.order(m.publish("v3.0.0", good))
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, 2, m.fetches, "the release runs already")

	m.install("v4.0.0")
	m.boot(&killDisk{})
	require.Equal(t, "v4.0.0", m.polls, "an installed package replaces the releases before it")
	m.install("v1.0.0")
	m.boot(&killDisk{})
	require.Equal(t, "v1.0.0", m.polls, "they do not return")
}

// TestRollBack: a release that does not work leaves the one before, which reports why. The
// next upgrade works.
func TestRollBack(t *testing.T) {
	t.Parallel()
	for behavior, want := range map[string]string{
		crashes: "upgrade_rolled_back: v3.0.0: it was started 3 times and made no successful poll",
		mute:    "upgrade_rolled_back: v3.0.0: no successful poll within 1ms: no luck",
	} {
		for _, before := range []string{"installed", "release"} {
			t.Run(behavior+" after "+before, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t)
				previous := "v1.0.0"
				if before == "release" {
					previous = "v2.0.0"
					m.order(m.publish(previous, good))
					m.finish()
				}
				for range 2 { // a retry tries again, and does not lose the one that works
					m.order(m.publish("v3.0.0", behavior))
					m.finish()
					require.EqualError(t, m.err, want)
					require.Equal(t, lifecycle.ReasonUpgradeRolledBack, schema.AsError(m.err).Reason)
					require.Equal(t, previous, m.polls)
				}
				m.order(m.publish("v4.0.0", good))
				m.finish()
				require.NoError(t, m.err)
				require.Equal(t, "v4.0.0", m.polls)
			})
		}
	}
}

// TestInstallBeforeUpgrade: a package that is installed while a release runs, without a
// restart, is what a failed upgrade returns to.
func TestInstallBeforeUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	m.finish()
	m.running = func() { m.install("v2.1.0") }
	m.order(m.publish("v3.0.0", crashes))
	m.finish()
	require.Error(t, m.err)
	require.Equal(t, "v2.1.0", m.polls)
}

// TestKeysChange: the upgrade that is on trial no longer needs a release key.
func TestKeysChange(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	require.Equal(t, "restarted", m.boot(&killDisk{}))
	m.keys = nil
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, "v2.0.0", m.polls)
}

// TestRejects: a release that is not the signed one is not tried.
func TestRejects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order   func(m *machine) string
		message string
	}{
		"another key": {func(m *machine) string { return newMachine(m.t).publish("v2.0.0", good) }, "no accepted key signed the document"},
		"no key": {func(m *machine) string {
			document := m.publish("v2.0.0", good)
			m.keys = nil
			return document
		}, "no release key"},
		"digest": {func(m *machine) string {
			m.fetch = func(data []byte) ([]byte, error) { return append(data[:len(data)-1:len(data)-1], 'x'), nil }
			return m.publish("v2.0.0", good)
		}, "not those of release v2.0.0"},
		"size": {func(m *machine) string {
			m.fetch = func(data []byte) ([]byte, error) { return data[1:], nil }
			return m.publish("v2.0.0", good)
		}, "not those of release v2.0.0"},
		"downgrade":  {func(m *machine) string { return m.publish("v0.9.0", good) }, "does not ask for a downgrade"},
		"wrong name": {func(m *machine) string { return m.relabeled("v2.0.0", "v2.0.1") }, `signed as version v2.0.1, and reports "v2.0.0"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.order(c.order(m))
			m.finish()
			require.ErrorContains(t, m.err, lifecycle.ReasonReleaseRejected+": ")
			require.ErrorContains(t, m.err, c.message)
			require.Equal(t, schema.KindTaskRefused, schema.KindOf(m.err))
			require.Equal(t, []string{"v1.0.0"}, m.ran)
			require.NoFileExists(t, filepath.Join(m.dir, "state", stateFile))
		})
	}
}

func TestDowngrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v0.9.0", good))
	m.params.Downgrade = true
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, "v0.9.0", m.polls)
}

// TestDownload: a download that ends early is repeated a few times.
func TestDownload(t *testing.T) {
	t.Parallel()
	cut := schema.NewError(schema.KindServiceUnavailable, "the download ended early")
	m := newMachine(t)
	m.fetch = func(data []byte) ([]byte, error) {
		if m.fetches < 3 {
			return nil, cut
		}
		return data, nil
	}
	m.order(m.publish("v2.0.0", good))
	m.finish()
	require.NoError(t, m.err)

	m.fetches, m.fetch = 0, func([]byte) ([]byte, error) { return nil, cut }
	m.order(m.publish("v3.0.0", good))
	m.finish()
	require.ErrorContains(t, m.err, "downloading release v3.0.0: the download ended early")
	require.Equal(t, maxDownloads, m.fetches)
	require.Equal(t, "v2.0.0", m.polls)
}

// TestDownloadLater: a download that the API asks to repeat later is repeated then, however often,
// but not after the time of the task.
func TestDownloadLater(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	document := m.publish("v2.0.0", good)
	synctest.Test(t, func(t *testing.T) {
		m.t = t
		busy := apierror.RetryError{Err: schema.NewError(schema.KindRateLimited, "too many downloads"), After: 20 * time.Second}
		m.fetch = func(data []byte) ([]byte, error) {
			if m.fetches <= 3*maxDownloads {
				return nil, busy
			}
			return data, nil
		}
		m.order(document)
		begin := time.Now()
		m.finish()
		require.NoError(t, m.err)
		require.Equal(t, 3*maxDownloads*busy.After, time.Since(begin).Truncate(time.Second), "it waits as long as the API asked")

		m.fetches, m.fetch = 0, func([]byte) ([]byte, error) { return nil, busy }
		m.order(m.publish("v3.0.0", good))
		begin = time.Now()
		m.finish()
		require.ErrorContains(t, m.err, "downloading release v3.0.0: too many downloads")
		require.LessOrEqual(t, time.Since(begin), downloadTime)
		require.Greater(t, time.Since(begin), downloadTime-2*busy.After)

		busy.After = time.Hour
		m.fetches = 0
		m.order(m.publish("v4.0.0", good))
		m.finish()
		require.ErrorContains(t, m.err, "downloading release v4.0.0: too many downloads")
		require.Equal(t, 1, m.fetches)
		require.Equal(t, "v2.0.0", m.polls)
	})
}

// TestFullDisk: the upgrade fails with the reason, and the agent stays.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	m.boot(&killDisk{fail: syscall.ENOSPC})
	require.ErrorContains(t, m.err, "storing release v2.0.0: no space left on device")
	require.Equal(t, "v1.0.0", m.polls)
	m.order(m.publish("v2.0.0", good))
	require.Equal(t, "restarted", m.boot(&killDisk{}))
	require.Equal(t, "idle", m.boot(&killDisk{fail: syscall.ENOSPC}), "the start of the trial cannot be counted")
	require.Equal(t, "v1.0.0", m.polls)
	require.ErrorContains(t, m.err, "upgrade_rolled_back: v2.0.0: it could not be started")
}

// TestTrialOnAFullDisk: a release that works and cannot be recorded is kept by a later poll.
func TestTrialOnAFullDisk(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	require.Equal(t, "restarted", m.boot(&killDisk{}))
	s := m.state()
	st, _, err := s.load()
	require.NoError(t, err)
	d := &killDisk{fail: syscall.ENOSPC}
	s.FS = d
	u := Open(m.config(s.StateDir, Running{m.installed, st.Trial.SHA256}, "v2.0.0"))
	u.Polled(nil)
	require.True(t, u.OnTrial())
	d.fail = nil
	u.Polled(nil)
	require.False(t, u.OnTrial())
	m.finish()
	require.NoError(t, m.err)
	require.Equal(t, "v2.0.0", m.polls)
}

// TestDamage: neither a damaged binary nor a damaged state prevents a start.
func TestDamage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	m.finish()
	s := m.state()
	st, _, err := s.load()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.binary(st.Current.SHA256), []byte("v2.0.0 x"), 0o700))
	require.Equal(t, "idle", m.boot(&killDisk{}))
	require.Equal(t, "v1.0.0", m.polls)
	require.NoError(t, os.WriteFile(s.File(stateFile), []byte("{"), 0o600))
	require.Equal(t, "idle", m.boot(&killDisk{}))
	require.Equal(t, "v1.0.0", m.polls)
}

// TestKillAtEachStep kills a process before and after each change of the disk, once for each
// change and kind of release. The task ends, and the agent that it says runs.
func TestKillAtEachStep(t *testing.T) {
	t.Parallel()
	for behavior, ends := range map[string]string{good: "v2.0.0", crashes: "v1.0.0", mute: "v1.0.0"} {
		t.Run(behavior, func(t *testing.T) {
			t.Parallel()
			for boot := range 6 {
				for _, after := range []bool{false, true} {
					for at := 1; killedAt(t, behavior, ends, boot, &killDisk{at: at, after: after}); at++ {
					}
				}
			}
		})
	}
}

// killedAt runs one life, in which one process is killed, and reports whether it was.
func killedAt(t *testing.T, behavior, ends string, boot int, d *killDisk) (killed bool) {
	t.Helper()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", behavior))
	for range boot {
		if m.boot(&killDisk{}) == "idle" {
			return false
		}
	}
	killed = m.boot(d) == "killed"
	m.finish()
	require.Equal(t, ends, m.polls, "boot %d, step %d", boot, d.at)
	require.Equal(t, ends == "v2.0.0", m.err == nil, "boot %d, step %d: %v", boot, d.at, m.err)
	require.Equal(t, "idle", m.boot(&killDisk{}))
	require.Equal(t, ends, m.polls, "boot %d, step %d", boot, d.at)
	return killed
}

// TestInstalledAgentCannotBeRead: a read error is no other agent. The release runs again as soon
// as the installed agent can be read.
func TestInstalledAgentCannotBeRead(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.order(m.publish("v2.0.0", good))
	m.finish()
	s := m.state()
	_, before, err := s.load()
	require.NoError(t, err)
	require.True(t, before)
	l := Launcher{State: s.StateDir, Running: Running{Installed: filepath.Join(t.TempDir(), "missing")}, Log: slog.New(slog.DiscardHandler)}
	require.NoError(t, l.Launch())
	_, kept, err := s.load()
	require.NoError(t, err)
	require.True(t, kept)
}
