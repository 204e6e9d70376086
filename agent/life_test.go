package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// TestLockClonedState: of two copies of a state folder, the second renewal locks the
// node. Both copies then wait long and log the cause.
func TestLockClonedState(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	dir := filepath.Dir(r.conf.StateDir)
	copied := t.TempDir()
	require.NoError(t, exec.CommandContext(t.Context(), "cp", "-a", dir+"/.", copied).Run())
	move := func(p string) string { return strings.Replace(p, dir, copied, 1) }
	twin := *r
	twin.agent, twin.log, twin.disk, twin.wire = nil, &agenttest.LogBuffer{}, &stepDisk{}, &wireLog{f: r.f}
	twin.conf.StateDir, twin.conf.CertPath, twin.conf.KeyPath = move(r.conf.StateDir), move(r.conf.CertPath), move(r.conf.KeyPath)
	twin.conf.EnvFile, twin.conf.CABundlePath, twin.conf.NodeCABundlePath = move(r.conf.EnvFile), move(r.conf.CABundlePath), move(r.conf.NodeCABundlePath)
	require.True(t, twin.boot())
	t.Cleanup(twin.agent.Close)

	r.due()
	r.converge()
	r.pass(trust.InFlight + time.Minute)
	twin.step()
	require.True(t, r.book.IsLocked)
	issued := r.book.Issued
	for range 5 {
		for _, side := range []*rig{r, &twin} {
			out := side.step()
			require.False(t, out.Removed)
		}
		r.pass(time.Hour)
	}
	require.Equal(t, issued, r.book.Issued)
	for _, side := range []*rig{r, &twin} {
		require.True(t, side.logged("node is locked"))
		require.FileExists(t, side.conf.KeyPath)
	}
}

// TestEnrollWithOperatorToken: a new token replaces a valid identity.
func TestEnrollWithOperatorToken(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.setToken(r.book.Token())
	r.wire.down = true
	require.True(t, r.boot())
	out := r.step()
	require.Equal(t, identity.ActEnroll, out.Action)
	require.Error(t, out.Err)
	require.True(t, out.Ready, "the current identity stays in use")
	r.wire.down = false
	r.pass(time.Minute)
	r.converge()
	v := r.agent.identity.Current()
	require.Equal(t, int64(2), v.ID.Incarnation)
	require.Equal(t, v.Meta.RecoveryToken, r.envToken())
	issued := r.book.Issued
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, issued, r.book.Issued, "a spent token is used again")
}

func TestRejectedOperatorTokenKeepsIdentity(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	wrong, _, _ := trust.NewToken()
	r.setToken(wrong)
	serial := r.serial()
	require.True(t, r.boot())
	out := r.step()
	require.Equal(t, identity.ActEnroll, out.Action)
	require.Equal(t, schema.KindUnauthenticated, schema.KindOf(out.Err))
	require.NoError(t, out.poll)
	require.Equal(t, serial, r.serial())
	n := r.f.Count("enroll")
	for range 3 {
		require.True(t, r.boot())
		r.converge()
	}
	require.Equal(t, n, r.f.Count("enroll"), "a refused token is tried again at each start")
	require.Equal(t, wrong, r.envToken(), "an operator's token is not overwritten")
}

// TestReadOnlyEnvFile: the token that paid for the identity stays in the env
// file and is never used as a new one.
func TestReadOnlyEnvFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	paid := r.envToken()
	r.conf.EnvFile += ".d/env"
	require.NoError(t, os.Mkdir(filepath.Dir(r.conf.EnvFile), 0o700))
	r.setToken(paid)
	r.converge()
	for range 40 {
		r.setToken(paid) // as on a file system that takes no write
		require.True(t, r.boot())
		r.due()
		r.converge()
	}
	require.Equal(t, 1, r.f.Count("enroll"))
	var saved struct{ Spent []string }
	_, err := disk.At("").ReadJSON(r.state().File("identity.json"), &saved)
	require.NoError(t, err)
	require.Len(t, saved.Spent, 16)
	require.NoError(t, os.Remove(r.state().File("identity.json")))
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, 1, r.f.Count("enroll"), "a lost memory is found in the versions")
}

func (r *rig) state() disk.StateDir { return disk.At(r.conf.StateDir) }

// TestRecoverAfterPairRemoved: an operator moved certificate and key aside. They are
// not used again if the node can obtain others.
func TestRecoverAfterPairRemoved(t *testing.T) {
	t.Parallel()
	for name, recovery := range map[string]bool{"recovers": true, "has no other way": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := enrolled(t)
			serial := r.serial()
			for _, p := range []string{r.conf.CertPath, r.conf.KeyPath} {
				require.NoError(t, os.Rename(p, p+".stale"))
			}
			if !recovery {
				require.NoError(t, os.Remove(r.state().File("recovery-key.pem")))
			}
			require.True(t, r.boot())
			r.converge()
			require.FileExists(t, r.conf.CertPath)
			if recovery {
				require.NotEqual(t, serial, r.serial())
				require.Equal(t, trust.IssuedByRecover, r.lastVia())
			} else {
				require.Equal(t, serial, r.serial())
			}
		})
	}
}

// TestEnrollAfterCAChange: the node CA changed, and an operator put a fresh token into the
// env file and moved certificate, key and node CA bundle aside. The node enrolls again and
// writes all three.
func TestEnrollAfterCAChange(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	next := agenttest.NewAuthority(t, "next node ca")
	r.book.Live = []agenttest.Authority{next}
	r.f.OnTrust = func() (trust.NodeTrust, error) { return agenttest.TrustOf(r.f.Server.PEM, next.PEM), nil }
	for _, p := range []string{r.conf.CertPath, r.conf.KeyPath, r.conf.NodeCABundlePath} {
		require.NoError(t, os.Rename(p, p+".stale-1"))
	}
	r.setToken(r.book.Token())
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, trust.IssuedByEnroll, r.lastVia())
	require.Equal(t, r.agent.identity.Current().Meta.Key, content(t, r.conf.KeyPath))
	require.FileExists(t, r.conf.CertPath)
	require.Equal(t, string(next.PEM), content(t, r.conf.NodeCABundlePath))
}

// TestBundleMovedAside: a node CA bundle that is missing is written again, once the server
// sends it.
func TestBundleMovedAside(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	require.NoError(t, os.Remove(r.conf.NodeCABundlePath))
	down := true
	r.f.OnTrust = func() (trust.NodeTrust, error) {
		if down {
			return trust.NodeTrust{}, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed")
		}
		return agenttest.TrustOf(r.f.Server.PEM, r.f.Nodes.PEM), nil
	}
	require.NoError(t, r.step().poll)
	require.NoFileExists(t, r.conf.NodeCABundlePath)
	require.True(t, r.logged("cannot load the node CA bundle again"))
	down = false
	require.NoError(t, r.step().poll)
	require.Equal(t, string(r.f.Nodes.PEM), content(t, r.conf.NodeCABundlePath))
	n := r.f.Count("trust")
	require.NoError(t, r.step().poll)
	require.Equal(t, n, r.f.Count("trust"), "nothing is left to do")
}

// TestCrashBeforeInstall: the process ended after it stored a recovered identity and
// before it copied it to the configured paths. The missing copies are not of that
// identity, so it is used.
func TestCrashBeforeInstall(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	for _, p := range []string{r.conf.CertPath, r.conf.KeyPath} {
		require.NoError(t, os.Rename(p, p+".stale"))
	}
	require.NoError(t, os.MkdirAll(r.conf.KeyPath+disk.Staged+"/in the way", 0o700))
	require.True(t, r.boot())
	r.step()
	recovered := r.serial()
	require.NoFileExists(t, r.conf.KeyPath)
	require.NoError(t, os.RemoveAll(r.conf.KeyPath+disk.Staged))
	require.True(t, r.boot())
	r.converge()
	require.Equal(t, recovered, r.serial())
	require.Equal(t, 1, r.f.Count("recover"))
	require.FileExists(t, r.conf.KeyPath)
}

// TestRecoverWithoutKey: a node without its recovery key reports that and enrolls
// only with an unspent token.
func TestRecoverWithoutKey(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	require.NoError(t, os.WriteFile(r.state().File("recovery-key.pem"), []byte("torn"), 0o600))
	r.pass(trust.CertTTL + time.Hour)
	n := r.f.Count("enroll")
	for range 5 {
		out := r.step()
		require.False(t, out.Ready)
		require.Error(t, out.Err)
		r.pass(out.Wait)
	}
	require.Equal(t, n, r.f.Count("enroll"))
	require.True(t, r.logged("reissue-enrollment "+r.conf.NodeID))
	r.setToken(r.book.Token())
	r.converge()
	require.Equal(t, trust.IssuedByEnroll, r.lastVia())
	require.True(t, r.agent.identity.Recoverable())
}

// TestWrongClock: the local clock is off by a year either way, before a start
// and while running. Nothing is wiped, and the server's time counts.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	year := 365 * 24 * time.Hour
	for name, off := range map[string]time.Duration{"ahead": year, "behind": -year} {
		for _, restart := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " at a start", false: " while running"}[restart], func(t *testing.T) {
				t.Parallel()
				r := enrolled(t)
				r.local.add(off)
				if restart {
					require.True(t, r.boot())
				}
				r.converge()
				r.whole(name)
				require.True(t, r.logged("clock of this node is wrong"))
				issued := r.book.Issued
				for range 5 {
					r.step()
					r.pass(time.Minute)
				}
				require.Equal(t, issued, r.book.Issued, "the server's time is known by now")
				r.due()
				r.converge()
				require.Equal(t, issued+1, r.book.Issued)
				r.local.add(-off)
				r.converge()
				r.whole("clock corrected")
			})
		}
	}
}

// TestRecoverFromWrongServerTime: one answer with a time far ahead must not
// disconnect the node permanently.
func TestRecoverFromWrongServerTime(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	install(f, c, f.ID, time.Now().Add(time.Hour))
	a, log := newAgent(t, c, Deps{})
	require.NoError(t, a.state.WriteJSON(a.state.File("identity.json"), map[string]any{"server_time": time.Now().Add(10000 * time.Hour),
		"seen": schema.SHA256Hex([]byte("gpuaas agent token\n" + c.EnrollmentToken.Reveal()))}))
	launch(t, a, log)
	f.Polls()
	require.Contains(t, log.String(), "is this node's clock right?")
}

// TestRetryAfter: the node retries shortly after the time that a busy server sent,
// and continues polling.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.f.RetryAfter = "120"
	r.book.Refuse = func(path string) error {
		if path == "renew" {
			return schema.NewError(schema.KindRateLimited, "busy")
		}
		return nil
	}
	out := r.step()
	require.Equal(t, schema.KindRateLimited, schema.KindOf(out.Err))
	require.NoError(t, out.poll)
	require.GreaterOrEqual(t, out.Wait, 2*time.Minute)
	require.LessOrEqual(t, out.Wait, 3*time.Minute)
	r.pass(2*time.Minute - time.Second)
	r.step()
	require.Equal(t, 1, r.f.Count("renew"))
	r.book.Refuse = nil
	r.pass(time.Minute + time.Second)
	r.converge()
	require.Equal(t, trust.IssuedByRenew, r.lastVia())
}

// TestWarnBeforeExpiry: in the last quarter of the certificate's lifetime the agent
// logs an error each hour, and the identity works until it expires.
func TestWarnBeforeExpiry(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.book.Refuse = func(path string) error {
		if path == "renew" || path == "recover" {
			return schema.NewError(schema.KindServiceUnavailable, "vault is sealed")
		}
		return nil
	}
	end := r.agent.identity.Current().Facts.NotAfter
	for r.clock.Now().Before(end.Add(-time.Minute)) {
		out := r.step()
		require.True(t, out.Ready)
		require.NoError(t, out.poll)
		r.pass(min(10*time.Minute, max(end.Sub(r.clock.Now())-30*time.Second, time.Second)))
	}
	n := strings.Count(r.log.String(), "certificate expires soon")
	require.InDelta(t, 18, n, 2) // a quarter of 72 h
	before, _, _ := strings.Cut(r.log.String(), "certificate expires soon")
	require.NotContains(t, before, "recovery started")
	r.pass(time.Hour)
	r.step()
	r.book.Refuse = nil
	r.pass(time.Hour)
	r.converge()
	require.Equal(t, trust.IssuedByRecover, r.lastVia())
}

// TestIdentityStatus checks the status command's output.
func TestIdentityStatus(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.converge()
	c := r.conf
	c.EnrollmentToken = schema.NewSecret(r.envToken())
	code, out, errOut := runCommand(t, environ(c), "status", "-o", "json")
	require.Equal(t, schema.ExitDone, code, errOut)
	s := decode[Status](t, []byte(out))
	require.Len(t, s.Versions, 2)
	require.True(t, s.Versions[0].InUse)
	require.Equal(t, int64(2), s.Sequence)
	require.Equal(t, trust.IssuedByRenew, s.Versions[0].Via)
	require.True(t, s.RecoveryPossible)
	require.False(t, s.LastRenewal.IsZero())
	require.True(t, s.NextRenewal.After(s.LastRenewal))
	require.Equal(t, r.serial(), s.Identity.Serial)
	require.NotContains(t, out, trust.TokenPrefix)
	_, out, _ = runCommand(t, environ(c), "status")
	require.Contains(t, out, "recovery possible")
	require.NotContains(t, out, trust.TokenPrefix)
}

// TestNoSecretsInLog enrolls, renews and recovers.
func TestNoSecretsInLog(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	r.due()
	r.converge()
	r.pass(trust.CertTTL * 2)
	r.converge()
	require.NotContains(t, r.log.String(), trust.TokenPrefix)
	require.NotContains(t, r.log.String(), "PRIVATE KEY")
	for _, s := range r.secrets() {
		require.NotContains(t, r.log.String(), s)
	}
}

// TestNewTaskTriggersProgress: a canceled drain ends when the next task
// arrives, not at the next progress call.
func TestNewTaskTriggersProgress(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	begun := make(chan string, 1)
	x := script{task.WorkloadCordon: held(begun, nil), task.FactsCollect: counting(new(atomic.Int32))}
	a, log := newAgent(t, configFor(f), Deps{Executors: x.executors(), timing: slowProgress()})
	f.Progress = func(string, task.Progress) (wire.ProgressResponse, error) {
		return wire.ProgressResponse{Cancel: true}, nil
	}
	launch(t, a, log)
	slow := f.Payload(task.WorkloadCordon, 1, nil)
	f.Offers <- f.OfferOf(slow, 1)
	<-begun
	require.Zero(t, f.Count("progress"))
	f.Offers <- f.OfferOf(f.Payload(task.FactsCollect, 2, nil), 1)
	require.Equal(t, task.Canceled, f.Result(slow.TaskID).Status)
}
