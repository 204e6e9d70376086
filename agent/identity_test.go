package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func TestRenewal(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	first := r.agent.identity.Current()
	require.Equal(t, first.Meta.RecoveryToken, r.envToken(), "the env file holds the recovery token after an enrollment")

	r.pass(trust.CertTTL / 4)
	out := r.step()
	require.Equal(t, identity.ActNothing, out.Action)
	require.Positive(t, out.Wait)

	r.due()
	out = r.step()
	require.Equal(t, identity.ActRenew, out.Action)
	require.NoError(t, out.Err)
	require.NoError(t, out.poll)
	second := r.agent.identity.Current()
	require.NotEqual(t, first.Facts.SPKI, second.Facts.SPKI, "a renewal makes a fresh key")
	require.Equal(t, int64(2), second.Meta.Sequence)
	require.True(t, r.book.Accepts(second.Facts.Serial))
	require.False(t, r.book.Accepts(first.Facts.Serial), "the first call promotes")
	require.Equal(t, second.Meta.RecoveryToken, r.envToken())

	require.Equal(t, second.Meta.Key, content(t, r.conf.KeyPath), "the copies are those of the newest version")
	require.True(t, strings.HasPrefix(content(t, r.conf.CertPath), strings.TrimRight(second.Meta.Certificate, "\n")))
	for range 3 {
		r.due()
		r.converge()
	}
	require.Equal(t, []string{"00000004.json", "00000005.json"}, r.stored())
	require.NoFileExists(t, filepath.Join(r.conf.StateDir, "next-key.json"))
	checkModes(t, r.conf)
	text, err := os.ReadFile(r.conf.EnvFile)
	require.NoError(t, err)
	require.Contains(t, string(text), "# kept\n")
}

// checkModes asserts that only the agent's user can read its state.
func checkModes(t *testing.T, c Config) {
	t.Helper()
	require.NoError(t, filepath.Walk(c.StateDir, func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().Perm()&0o077 != 0 {
			err = fmt.Errorf("%s is %s", path, fi.Mode())
		}
		return err
	}))
	for _, p := range []string{c.CertPath, c.KeyPath, c.EnvFile} {
		fi, err := os.Stat(p)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), fi.Mode().Perm(), p)
	}
}

// TestRenewalSpreads: the points of a fleet issued at once lie within ±10 % of
// the life around its half, and not together.
func TestRenewalSpreads(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	k, v := r.agent.identity, *r.agent.identity.Current()
	life := v.Leaf.NotAfter.Sub(v.Leaf.NotBefore)
	low, high := 1.0, 0.0
	for i := range 1000 {
		v.Pair = &identity.Pair{Leaf: v.Leaf, ID: trust.Identity{NodeID: fmt.Sprint(i)}, Facts: v.Facts}
		at := float64(k.RenewAt(&v).Sub(v.Leaf.NotBefore)) / float64(life)
		low, high = min(low, at), max(high, at)
	}
	require.InDelta(t, 0.4, low, 0.005)
	require.InDelta(t, 0.6, high, 0.005)
}

// TestPollTimeout: a poll ends when the renewal is due, because a longer one would
// outlast a short-lived certificate.
func TestPollTimeout(t *testing.T) {
	t.Parallel()
	r := enrolled(t)
	k := r.agent.identity
	v := k.Current()
	// The longest retry delay is below the poll timeout, so the retry limits the poll
	// whatever the jitter is.
	k.SetTiming(identity.Timing{PollTimeout: 55 * time.Second, Renewal: wait.Range{Min: 50 * time.Second, Max: 50 * time.Second}}, nil)
	require.Equal(t, 55*time.Second, k.PollTimeout(v))
	r.pass(k.RenewAt(v).Sub(r.agent.clock.Now()) - 10*time.Second)
	require.Equal(t, 10*time.Second, k.PollTimeout(v))
	r.due()
	require.Equal(t, time.Second, k.PollTimeout(v))
	r.book.Refuse = func(string) error { return schema.NewError(schema.KindServiceUnavailable, "busy") }
	require.Error(t, r.agent.ReconcileIdentity(t.Context()).Err)
	require.Greater(t, k.RetryIn(), 10*time.Second)
	require.Equal(t, k.RetryIn().Round(time.Second), k.PollTimeout(v), "a failed renewal is retried later")
}

// scene is a state of a node in which its identity changes.
type scene struct {
	name    string
	prepare func(t *testing.T) *rig
}

func scenes() []scene {
	return []scene{
		{"enroll", newRig},
		{"renew", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			r.due()
			return r
		}},
		{"second renewal", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			r.due()
			r.converge()
			r.due()
			return r
		}},
		{"recover", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			r.pass(trust.CertTTL + time.Hour)
			return r
		}},
		{"reissue", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			r.setToken(r.book.Token())
			r.agent.Close()
			r.agent = nil
			return r
		}},
		{"token of a task", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			require.NoError(t, r.agent.identity.StoreToken("task", schema.NewSecret(r.book.Token())))
			require.NoError(t, r.agent.identity.UseToken("task"))
			r.agent.Close()
			r.agent = nil
			return r
		}},
		{"changed ca", func(t *testing.T) *rig {
			t.Helper()
			r := enrolled(t)
			r.book.Live = []agenttest.Authority{agenttest.NewAuthority(t, "next node ca")}
			return r
		}},
	}
}

// whole asserts the result that every fault must have: the node polls with an
// accepted identity, is not locked, and needed no operator.
func (r *rig) whole(what string) {
	r.t.Helper()
	require.False(r.t, r.book.IsLocked, "%s: locked", what)
	require.False(r.t, r.agent.identity.Removed(), what)
	require.True(r.t, r.agent.identity.Recoverable(), "%s: no way back", what)
}

// TestDiskFaults breaks each single step of the disk, once and for a while, in
// every scene. The node continues with the old identity or obtains the new one.
func TestDiskFaults(t *testing.T) {
	t.Parallel()
	for _, s := range scenes() {
		modes := []string{"once", "full for a while", "crash"}
		if s.name == "second renewal" || s.name == "changed ca" {
			modes = modes[2:] // the same steps, from another beginning
		}
		for _, mode := range modes {
			t.Run(s.name+" "+mode, func(t *testing.T) {
				t.Parallel()
				broke, last := true, 0
				for k := 1; broke; k += stride(5) {
					r := s.prepare(t)
					had := ""
					if r.agent != nil {
						had = r.serial()
					} else if mode != "crash" {
						require.True(t, r.boot())
					}
					r.disk.n, r.disk.at, r.disk.crash, r.disk.forever = 0, k, mode == "crash", mode == "full for a while"
					if mode == "full for a while" {
						for range 5 {
							out := r.step()
							require.False(t, out.Removed)
							if s.name == "renew" || s.name == "second renewal" {
								require.True(t, out.Ready, "step %d: a failed renewal lost the identity %s", k, had)
							}
							r.pass(min(out.Wait, time.Minute))
						}
					}
					if broke = r.disk.n >= k; mode != "full for a while" {
						r.converge()
						broke = r.disk.n >= k
					}
					r.disk.at = 0
					r.converge()
					r.agent.Close()
					r.agent = nil
					r.converge()
					r.whole(fmt.Sprintf("step %d and a restart", k))
					require.Less(t, k, 400)
					last = k
				}
				require.Greater(t, last, 15, "the faults reached nothing")
			})
		}
	}
}

// stride is the step of a sweep over every place where something may fail: each
// of them, or every so many under -short.
func stride(short int) int {
	if testing.Short() {
		return short
	}
	return 1
}

// TestLostMessages loses each single request or answer of every scene, once
// and three times running.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	for _, s := range scenes() {
		for _, lost := range []string{"request", "answer"} {
			for _, times := range []int{1, 3} {
				for _, restart := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s %s %d restart=%t", s.name, lost, times, restart), func(t *testing.T) {
						t.Parallel()
						for k := 1; k <= 6; k += stride(3) {
							r := s.prepare(t)
							r.wire.n.Store(0)
							r.wire.lose = func(n int, _ string) string {
								if n >= k && n < k+times {
									return lost
								}
								return ""
							}
							for n := r.wire.n.Load(); n < int64(k+times-1) && n < 8; n = r.wire.n.Load() {
								if r.agent == nil {
									require.True(t, r.boot())
								}
								before := r.wire.n.Load()
								out := r.step()
								r.pass(min(max(out.Wait, time.Second), time.Minute))
								if restart && r.wire.n.Load() > before {
									r.agent.Close()
									r.agent = nil
								}
							}
							r.converge()
							r.whole(fmt.Sprintf("message %d", k))
						}
					})
				}
			}
		}
	}
}
