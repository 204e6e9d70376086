package agent

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

func TestEnrollStoresPair(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	a := start(t, c, Deps{})
	f.Polls()
	for _, p := range []string{c.CertPath, c.KeyPath} {
		fi, err := os.Stat(p)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), fi.Mode().Perm(), p)
	}
	eventually(t, "the end of the staged key", func() bool { return !exists(a.state.File("next-key.json")) })
	a.halt()

	b := start(t, c, Deps{})
	f.Until("a poll of the second run", func() bool { return len(f.Haves) > 1 })
	b.halt()
	require.Equal(t, 1, f.Count("enroll"), "an enrolled node enrolled again")
}

func TestEnrollAfterLostAnswer(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.Lose = func(what string, n int) bool { return what == "enroll" && n <= 2 }
	start(t, configFor(f), Deps{})
	f.Polls()
	keys := f.Keys()
	require.Len(t, keys, 3)
	require.Equal(t, keys[0], keys[1])
	require.Equal(t, keys[0], keys[2], "the retry uses another key than the claim")
}

func TestEnrollAfterRestart(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	f.Lose = func(what string, n int) bool { return what == "enroll" && n == 1 }
	code, _, _ := runCommand(t, environ(c), "enroll")
	require.Equal(t, schema.ExitUnreachable, code)
	code, _, errOut := runCommand(t, environ(c), "enroll")
	require.Equal(t, schema.ExitDone, code, errOut)
	require.Equal(t, f.Keys()[0], f.Keys()[1])
}

func TestEnrollRefusedWaitsForBundle(t *testing.T) {
	t.Parallel()
	for _, kind := range []schema.Kind{schema.KindTokenConsumed, schema.KindTokenExpired, schema.KindUnauthenticated} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			c := configFor(f)
			fresh, _, _ := trust.NewToken()
			f.OnEnroll = func(_ int, r wire.EnrollRequest) error {
				if r.Token == fresh {
					return nil
				}
				return schema.NewError(kind, "this token opens nothing")
			}
			var replaced atomic.Bool
			a, log := newAgent(t, c, Deps{Reload: func() (Config, error) {
				next := c
				if replaced.Load() {
					next.EnrollmentToken = schema.NewSecret(fresh)
				}
				return next, nil
			}})
			launch(t, a, log)
			f.Until("two refusals", func() bool { return f.Counts["enroll"] > 1 })
			require.Zero(t, f.Count("wait"))
			replaced.Store(true)
			f.Polls()
			require.Contains(t, log.String(), `"msg":"enrollment failed"`)
			require.Contains(t, log.String(), `"code":"`+string(kind)+`"`)
			require.NotContains(t, log.String(), c.EnrollmentToken.Reveal())
			require.NotContains(t, log.String(), fresh)
		})
	}
}

func TestEnrollWithoutToken(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	c.EnrollmentToken = schema.Secret{}
	a := start(t, c, Deps{})
	eventually(t, "a clear line", func() bool { return strings.Contains(a.log.String(), "GPUAAS_ENROLLMENT_TOKEN is not set") })
	require.Contains(t, a.log.String(), "reissue-enrollment "+c.NodeID)
	require.Zero(t, f.Count("enroll"))
}

// Without an identity there is nothing to remove: the agent keeps asking.
func TestEnrollRemovedNode(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	f.OnEnroll = func(int, wire.EnrollRequest) error {
		return schema.NewError(schema.KindInvalidNodeIdentity, "removed").WithReason(schema.ReasonNodeRemoved)
	}
	a := start(t, configFor(f), Deps{})
	f.Until("several attempts", func() bool { return f.Counts["enroll"] > 4 })
	require.Equal(t, 1, strings.Count(a.log.String(), "there is no valid removal"))
}

// TestUntrustedServerGetsNoToken: not one request may reach a server that the
// CA bundle does not prove, whatever the fault of its certificate.
func TestUntrustedServerGetsNoToken(t *testing.T) {
	t.Parallel()
	good := func() *x509.Certificate {
		return &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	for name, spoil := range map[string]func(f *agenttest.API, c *x509.Certificate) agenttest.Authority{
		"other ca": func(*agenttest.API, *x509.Certificate) agenttest.Authority {
			return agenttest.NewAuthority(t, "other ca")
		},
		"node ca": func(f *agenttest.API, _ *x509.Certificate) agenttest.Authority { return f.Nodes },
		"other name": func(f *agenttest.API, c *x509.Certificate) agenttest.Authority {
			c.DNSNames = []string{"elsewhere"}
			return f.Server
		},
		"expired": func(f *agenttest.API, c *x509.Certificate) agenttest.Authority {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
			return f.Server
		},
		"client certificate": func(f *agenttest.API, c *x509.Certificate) agenttest.Authority {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			return f.Server
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := agenttest.New(t)
			f.Srv.Close()
			tmpl := good()
			f.Start(spoil(f, tmpl).ServerWith(t, tmpl))
			untrusted(t, f, configFor(f))
		})
	}
	t.Run("no tls", func(t *testing.T) {
		t.Parallel()
		f := agenttest.New(t)
		plain := httptest.NewServer(http.HandlerFunc(f.Serve))
		t.Cleanup(plain.Close)
		c := configFor(f)
		c.APIURL = strings.Replace(plain.URL, "http://127.0.0.1", "https://localhost", 1)
		untrusted(t, f, c)
	})
}

func untrusted(t *testing.T, f *agenttest.API, c Config) {
	t.Helper()
	a := start(t, c, Deps{})
	eventually(t, "three attempts", func() bool { return strings.Count(a.log.String(), `"enrollment failed"`) > 2 })
	require.Empty(t, f.Seen())
}

func TestNoRedirects(t *testing.T) {
	t.Parallel()
	f, elsewhere := agenttest.New(t), agenttest.New(t)
	f.Srv.Config.Handler = http.RedirectHandler(elsewhere.URL(), http.StatusTemporaryRedirect)
	a := start(t, configFor(f), Deps{})
	eventually(t, "a failed attempt", func() bool { return strings.Contains(a.log.String(), "answer 307 is not in the node API's format") })
	require.Empty(t, elsewhere.Seen())
}

func TestEnrollRejectsForeignAnswer(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	f.AnswerID = &trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	code, _, errOut := runCommand(t, environ(c), "enroll")
	require.NotZero(t, code)
	require.Contains(t, errOut, "names node "+f.AnswerID.NodeID)
	require.NoFileExists(t, c.CertPath)
	f.AnswerID = &trust.Identity{Env: "test", NodeID: f.ID.NodeID, Incarnation: 7}
	_, _, errOut = runCommand(t, environ(c), "enroll")
	require.Contains(t, errOut, "incarnation 7")
	require.NoFileExists(t, c.CertPath)
}

func TestEnrollFullDiskReusesKey(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	a, log := newAgent(t, c, Deps{FS: &fullDisk{left: 3}})
	launch(t, a, log)
	f.Polls()
	for _, k := range f.Keys() {
		require.Equal(t, f.Keys()[0], k)
	}
	require.Contains(t, log.String(), "no space left on device")
}

func TestEnrollAfterExpiry(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	install(f, c, f.ID, time.Now().Add(-time.Second))
	a := start(t, c, Deps{})
	f.Polls()
	require.Equal(t, "POST /enroll", f.Seen()[0])
	require.Contains(t, a.log.String(), "the certificate expired at")
}

func TestRejectForeignIdentity(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	install(f, c, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}, time.Time{})
	a := start(t, c, Deps{})
	f.Polls()
	require.Equal(t, 1, f.Count("enroll"))
	require.Contains(t, a.log.String(), "the certificate names node")
}

// fullDisk refuses the first new files.
type fullDisk struct {
	disk.OS
	left int
}

func (d *fullDisk) Create(path string) (disk.File, error) {
	if d.left--; d.left >= 0 {
		return nil, syscall.ENOSPC
	}
	return d.OS.Create(path)
}
