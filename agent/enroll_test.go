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

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// polls waits until the agent polled, which needs an identity.
func (f *fakeAPI) polls() { f.until("a poll", func() bool { return f.counts["wait"] > 0 }) }

func TestEnrolStoresThePair(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	a := start(t, c, Deps{})
	f.polls()
	for _, p := range []string{c.CertPath, c.KeyPath} {
		fi, err := os.Stat(p)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(privateFile), fi.Mode().Perm(), p)
	}
	require.NoFileExists(t, a.state.file(stagedFile))
	a.halt()

	b := start(t, c, Deps{})
	f.until("a poll of the second run", func() bool { return len(f.haves) > 1 })
	b.halt()
	require.Equal(t, 1, f.count("enroll"), "an enrolled node enrols again")
}

func TestEnrolAfterALostAnswer(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.lose = func(what string, n int) bool { return what == "enroll" && n <= 2 }
	start(t, f.config(), Deps{})
	f.polls()
	keys := f.keys()
	require.Len(t, keys, 3)
	require.Equal(t, keys[0], keys[1])
	require.Equal(t, keys[0], keys[2], "the retry uses another key than the claim")
}

func TestEnrolAfterARestartInTheMiddle(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	f.lose = func(what string, n int) bool { return what == "enroll" && n == 1 }
	code, _, _ := command(t, environ(c), "enroll")
	require.Equal(t, schema.ExitUnreachable, code)
	code, _, errOut := command(t, environ(c), "enroll")
	require.Equal(t, schema.ExitDone, code, errOut)
	require.Equal(t, f.keys()[0], f.keys()[1])
}

func TestEnrolRefusedWaitsForANewBundle(t *testing.T) {
	t.Parallel()
	for _, kind := range []schema.Kind{schema.KindTokenConsumed, schema.KindTokenExpired, schema.KindUnauthenticated} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			c := f.config()
			fresh, _, _ := trust.NewToken()
			f.onEnroll = func(_ int, r wire.EnrollRequest) error {
				if r.Token == fresh {
					return nil
				}
				return schema.NewError(kind, "this token opens nothing")
			}
			var replaced atomic.Bool
			a, log := newAgent(t, c, Deps{Reload: func() (Config, error) {
				next := c
				if replaced.Load() {
					next.EnrollmentToken = Secret(fresh)
				}
				return next, nil
			}})
			launch(t, a, log)
			f.until("two refusals", func() bool { return f.counts["enroll"] > 1 })
			require.Zero(t, f.count("wait"))
			replaced.Store(true)
			f.polls()
			require.Contains(t, log.String(), `"msg":"enrolment failed"`)
			require.Contains(t, log.String(), `"code":"`+string(kind)+`"`)
			require.NotContains(t, log.String(), string(c.EnrollmentToken))
			require.NotContains(t, log.String(), fresh)
		})
	}
}

func TestEnrolWithoutAToken(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	c.EnrollmentToken = ""
	a := start(t, c, Deps{})
	eventually(t, "a clear line", func() bool { return strings.Contains(a.log.String(), "GPUAAS_ENROLLMENT_TOKEN is not set") })
	require.Contains(t, a.log.String(), "reissue-enrollment "+c.NodeID)
	require.Zero(t, f.count("enroll"))
}

func TestEnrolOfARemovedNodeEnds(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	f.onEnroll = func(int, wire.EnrollRequest) error {
		return schema.NewError(schema.KindInvalidNodeIdentity, "removed").WithReason(schema.ReasonNodeRemoved)
	}
	a := start(t, f.config(), Deps{})
	a.ends(t)
	require.NoError(t, a.err)
	require.Contains(t, a.log.String(), "node removed")
}

// TestNoTokenForAnUntrustedServer: not one request may reach a server that the
// CA bundle does not prove, whatever the fault of its certificate.
func TestNoTokenForAnUntrustedServer(t *testing.T) {
	t.Parallel()
	good := func() *x509.Certificate {
		return &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	for name, spoil := range map[string]func(f *fakeAPI, c *x509.Certificate) authority{
		"other ca":   func(*fakeAPI, *x509.Certificate) authority { return newAuthority(t, "stranger") },
		"node ca":    func(f *fakeAPI, _ *x509.Certificate) authority { return f.nodes },
		"other name": func(f *fakeAPI, c *x509.Certificate) authority { c.DNSNames = []string{"elsewhere"}; return f.server },
		"expired": func(f *fakeAPI, c *x509.Certificate) authority {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
			return f.server
		},
		"client certificate": func(f *fakeAPI, c *x509.Certificate) authority {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			return f.server
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			f.srv.Close()
			tmpl := good()
			f.start(spoil(f, tmpl).serverWith(t, tmpl))
			untrusted(t, f, f.config())
		})
	}
	t.Run("no tls", func(t *testing.T) {
		t.Parallel()
		f := newFakeAPI(t)
		plain := httptest.NewServer(http.HandlerFunc(f.serve))
		t.Cleanup(plain.Close)
		c := f.config()
		c.APIURL = strings.Replace(plain.URL, "http://127.0.0.1", "https://localhost", 1)
		untrusted(t, f, c)
	})
}

func untrusted(t *testing.T, f *fakeAPI, c Config) {
	t.Helper()
	a := start(t, c, Deps{})
	eventually(t, "three attempts", func() bool { return strings.Count(a.log.String(), `"enrolment failed"`) > 2 })
	require.Empty(t, f.seen())
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	f, elsewhere := newFakeAPI(t), newFakeAPI(t)
	f.srv.Config.Handler = http.RedirectHandler(elsewhere.url(), http.StatusTemporaryRedirect)
	a := start(t, f.config(), Deps{})
	eventually(t, "a failed attempt", func() bool { return strings.Contains(a.log.String(), "the answer 307 is not the node API's") })
	require.Empty(t, elsewhere.seen())
}

func TestEnrolRefusesAForeignAnswer(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	f.answerID = &trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	code, _, errOut := command(t, environ(c), "enroll")
	require.NotZero(t, code)
	require.Contains(t, errOut, "names node "+f.answerID.NodeID)
	require.NoFileExists(t, c.CertPath)
	f.answerID = &trust.Identity{Env: "test", NodeID: f.id.NodeID, Incarnation: 7}
	_, _, errOut = command(t, environ(c), "enroll")
	require.Contains(t, errOut, "incarnation 7")
	require.NoFileExists(t, c.CertPath)
}

func TestEnrolOnAFullDiskUsesTheSameKeyAgain(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	a, log := newAgent(t, c, Deps{FS: &fullDisk{left: 3}})
	launch(t, a, log)
	f.polls()
	for _, k := range f.keys() {
		require.Equal(t, f.keys()[0], k)
	}
	require.Contains(t, log.String(), "no space left on device")
}

func TestExpiredCertificateEnrolsInsteadOfPolling(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	f.install(c, f.id, time.Now().Add(-time.Second))
	a := start(t, c, Deps{})
	f.polls()
	require.Equal(t, "POST /enroll", f.seen()[0])
	require.Contains(t, a.log.String(), "the certificate expired at")
}

func TestForeignIdentityOnDiskIsNotUsed(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t)
	c := f.config()
	f.install(c, trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}, time.Time{})
	a := start(t, c, Deps{})
	f.polls()
	require.Equal(t, 1, f.count("enroll"))
	require.Contains(t, a.log.String(), "the certificate names node")
}

// fullDisk refuses the first new files.
type fullDisk struct {
	OS
	left int
}

func (d *fullDisk) Create(path string) (File, error) {
	if d.left--; d.left >= 0 {
		return nil, syscall.ENOSPC
	}
	return d.OS.Create(path)
}
