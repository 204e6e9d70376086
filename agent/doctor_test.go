package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// checksOf indexes the checks of a report by name.
func checksOf(t *testing.T, r diagnosis.Report) map[string]diagnosis.Check {
	t.Helper()
	all := map[string]diagnosis.Check{}
	for _, c := range r.Checks {
		require.NotContains(t, all, c.Name)
		all[c.Name] = c
		if c.Result == diagnosis.Failed {
			require.NotEmpty(t, c.Asked, c.Name)
			require.NotEmpty(t, c.Owner, c.Name)
			require.NotEmpty(t, c.Next, c.Name)
		}
	}
	return all
}

// enrolledNode is a node that has an identity and has polled.
func enrolledNode(t *testing.T) (*agenttest.API, Config) {
	t.Helper()
	f := agenttest.New(t)
	c := configFor(f)
	install(f, c, f.ID, time.Now().Add(time.Hour))
	state := disk.At(c.StateDir)
	require.NoError(t, state.WriteJSON(state.File("poll.json"), PollStatus{At: time.Now(), OK: true}))
	return f, c
}

func TestDoctorOfAGoodNode(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	r := Diagnose(t.Context(), c, nil)
	require.Empty(t, r.Faults())
	names := []string{}
	for _, check := range r.Checks {
		require.Equal(t, diagnosis.OK, check.Result, check.Name)
		names = append(names, check.Name)
	}
	require.Equal(t, []string{"configuration", "name", "connection", "server certificate", "route", "clock", "certificate",
		"identity accepted", "state directory", "last poll", "verifier set", "workload driver"}, names)
	all := checksOf(t, r)
	require.Contains(t, all["route"].Answer, schema.ReasonNoCertificate)
	require.Contains(t, all["server certificate"].Answer, "SHA-256")
}

// TestDoctorBeforeTheFirstPollEnds: a poll is recorded when it ends, which takes a minute.
func TestDoctorBeforeTheFirstPollEnds(t *testing.T) {
	t.Parallel()
	f := agenttest.New(t)
	c := configFor(f)
	start(t, c, Deps{})
	f.Until("a poll", func() bool { return f.Open > 0 })
	r := Diagnose(t.Context(), c, nil)
	require.Empty(t, r.Faults())
	require.Contains(t, checksOf(t, r)["last poll"].Answer, "just enrolled")
}

// listen serves connections with a function until the test ends, and returns the URL.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return "https://localhost:" + port
}

// foreign is a server with a certificate of the right CA that is not the node API.
func foreign(t *testing.T, f *agenttest.API, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = f.TLS(f.Server.Server(t))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
}

// answering is a foreign server that answers with a status.
func answering(status int) func(t *testing.T, f *agenttest.API, c *Config) {
	return func(t *testing.T, f *agenttest.API, c *Config) {
		t.Helper()
		c.APIURL = foreign(t, f, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
}

// rejecting makes the API reject the node for a reason.
func rejecting(reason string) func(t *testing.T, f *agenttest.API, c *Config) {
	return func(_ *testing.T, f *agenttest.API, _ *Config) {
		f.OnProbe = func() error { return agenttest.IdentityError(reason) }
	}
}

// serverWith makes the API's certificate another one.
func serverWith(t *testing.T, f *agenttest.API, by agenttest.Authority, tmpl *x509.Certificate) {
	t.Helper()
	certificate := by.ServerWith(t, tmpl)
	f.Srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{certificate}}, nil
	}
}

// TestDoctorNamesTheFault: each fault is found by the check of its layer, with its owner and a
// next step, and what depends on it is not asked.
func TestDoctorNamesTheFault(t *testing.T) {
	t.Parallel()
	serverAuth := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for name, test := range map[string]struct {
		set    func(t *testing.T, f *agenttest.API, c *Config)
		check  string
		owner  diagnosis.Owner
		answer string // a part of it
		next   string // a part of it
	}{
		"a raw address": {func(_ *testing.T, _ *agenttest.API, c *Config) { c.APIURL = "https://192.0.2.1" },
			"configuration", diagnosis.Operator, "GPUAAS_API_URL", "bootstrap-script"},
		"a name without an address": {func(_ *testing.T, _ *agenttest.API, c *Config) { c.APIURL = "https://node-api.invalid" },
			"name", diagnosis.Network, "node-api.invalid", "/etc/hosts"},
		"a closed port": {func(_ *testing.T, _ *agenttest.API, c *Config) { c.APIURL = "https://localhost:1" },
			"connection", diagnosis.Ingress, "refused", "gpuaas-api"},
		"an end before the certificate": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			c.APIURL = listen(t, func(conn net.Conn) { conn.Close() })
		}, "server certificate", diagnosis.Ingress, "before it sent a certificate", "openssl s_client -connect localhost:"},
		"no TLS": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			c.APIURL = listen(t, func(conn net.Conn) {
				defer conn.Close()
				fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			})
		}, "server certificate", diagnosis.Ingress, "does not speak TLS", "load balancer"},
		"another CA": {func(t *testing.T, f *agenttest.API, _ *Config) {
			t.Helper()
			serverWith(t, f, agenttest.NewAuthority(t, "other ca"), &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: serverAuth})
		}, "server certificate", diagnosis.Operator, "CN=other ca", "bootstrap-script"},
		"another name": {func(t *testing.T, f *agenttest.API, _ *Config) {
			t.Helper()
			serverWith(t, f, f.Server, &x509.Certificate{DNSNames: []string{"other.internal"}, ExtKeyUsage: serverAuth})
		}, "server certificate", diagnosis.ControlPlane, "other.internal", "GPUAAS_NODE_API_NAMES"},
		"an expired server certificate": {func(t *testing.T, f *agenttest.API, _ *Config) {
			t.Helper()
			serverWith(t, f, f.Server, &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: serverAuth,
				NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(-time.Minute)})
		}, "server certificate", diagnosis.Node, "expired", "timedatectl"},
		"no CA bundle": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			require.NoError(t, os.Remove(c.CABundlePath))
		},
			"server certificate", diagnosis.Node, "no such file", "bootstrap-script"},
		"another server":      {answering(http.StatusNotFound), "route", diagnosis.Ingress, "status 404", "GPUAAS_API_URL"},
		"a redirect":          {answering(http.StatusFound), "route", diagnosis.Ingress, "status 302", "GPUAAS_API_URL"},
		"a page":              {answering(http.StatusOK), "route", diagnosis.Ingress, "status 200", "GPUAAS_API_URL"},
		"a proxy without API": {answering(http.StatusBadGateway), "route", diagnosis.Ingress, "status 502", "readyz"},
		"a proxy that ends it": {func(t *testing.T, f *agenttest.API, c *Config) {
			t.Helper()
			c.APIURL = foreign(t, f, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}, "route", diagnosis.Ingress, "without an answer", "log of the proxy"},
		"a wrong clock": {func(t *testing.T, f *agenttest.API, c *Config) {
			t.Helper()
			c.APIURL = foreign(t, f, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", time.Now().Add(-6*time.Minute).UTC().Format(http.TimeFormat))
				f.Serve(w, r)
			})
		}, "clock", diagnosis.Node, "difference 6m", "timedatectl"},
		"another node CA": {func(t *testing.T, f *agenttest.API, _ *Config) {
			t.Helper()
			conf := f.Srv.TLS.Clone()
			conf.ClientCAs = x509.NewCertPool()
			conf.ClientCAs.AddCert(agenttest.NewAuthority(t, f.Nodes.Cert.Subject.CommonName).Cert)
			f.Srv.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return conf, nil }
		}, "identity accepted", diagnosis.ControlPlane, "unknown certificate authority", "trusted_cas"},
		"a proxy without certificates": {rejecting(schema.ReasonNoCertificate), "identity accepted", diagnosis.Ingress, "no_certificate", "TCP"},
		"a locked node":                {rejecting(schema.ReasonNodeLocked), "identity accepted", diagnosis.Operator, "node_locked", "gpuaas node show"},
		"a removed node":               {rejecting(schema.ReasonNodeRemoved), "identity accepted", diagnosis.Operator, "node_removed", "register"},
		"a copy":                       {rejecting(schema.ReasonSerialSuperseded), "identity accepted", diagnosis.Operator, "serial_superseded", "gpuaas node show"},
		"a retired issuer":             {rejecting(schema.ReasonIssuerRetired), "identity accepted", diagnosis.Node, "issuer_retired", "restart"},
		"an issuer that is not known":  {rejecting(schema.ReasonUnknownIssuer), "identity accepted", diagnosis.ControlPlane, "unknown_issuer", "trusted_cas"},
		"an API without its database": {func(_ *testing.T, f *agenttest.API, _ *Config) {
			f.OnProbe = func() error { return schema.NewError(schema.KindServiceUnavailable, "postgres does not respond") }
		}, "identity accepted", diagnosis.ControlPlane, "postgres", "gpuaas stuck"},
		"no identity": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			require.NoError(t, os.RemoveAll(filepath.Join(c.StateDir, "identity")))
		}, "certificate", diagnosis.Node, "no certificate", "enrolls with its token"},
		"no identity and no token": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			c.EnrollmentToken = schema.Secret{}
			require.NoError(t, os.RemoveAll(filepath.Join(c.StateDir, "identity")))
		}, "certificate", diagnosis.Operator, "no certificate", "bootstrap-script"},
		"an issuer that is not in the file": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			require.NoError(t, os.WriteFile(c.NodeCABundlePath, agenttest.NewAuthority(t, "new ca").PEM, 0o600))
		}, "certificate", diagnosis.Node, "is not in", "corrects the file"},
		"an agent that does not run": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			state := disk.At(c.StateDir)
			require.NoError(t, state.WriteJSON(state.File("poll.json"), PollStatus{At: time.Now().Add(-time.Hour), OK: true}))
		}, "last poll", diagnosis.Node, ", ok", "systemctl restart"},
		"an agent that never ran": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			require.NoError(t, os.Remove(filepath.Join(c.StateDir, "poll.json")))
		}, "last poll", diagnosis.Node, "never", "systemctl restart"},
		"an agent whose polls fail": {func(t *testing.T, _ *agenttest.API, c *Config) {
			t.Helper()
			state := disk.At(c.StateDir)
			require.NoError(t, state.WriteJSON(state.File("poll.json"), PollStatus{At: time.Now(), Error: "connection refused"}))
		}, "last poll", diagnosis.Node, "connection refused", "first fault"},
		"no workload driver": {func(_ *testing.T, _ *agenttest.API, c *Config) { c.WorkloadDriver = "" },
			"workload driver", diagnosis.Operator, "no workload driver", "gpuaas node set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c := enrolledNode(t)
			test.set(t, f, &c)
			r := Diagnose(t.Context(), c, nil)
			all := checksOf(t, r)
			faults := r.Faults()
			require.Len(t, faults, 1, "%+v", r.Checks)
			got := all[test.check]
			require.Equal(t, faults[0], got)
			require.Equal(t, test.owner, got.Owner)
			require.Contains(t, got.Answer, test.answer)
			require.Contains(t, got.Next, test.next)
			order := []string{"name", "connection", "server certificate", "route", "identity accepted"}
			if at := slices.Index(order, test.check); at >= 0 {
				for _, later := range order[at+1:] {
					require.Equal(t, diagnosis.Skipped, all[later].Result, later)
				}
			}
		})
	}
}

func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	f, c := enrolledNode(t)
	code, out, errOut := runCommand(t, environ(c), "doctor")
	require.Equal(t, schema.ExitDone, code, errOut+out)
	require.Contains(t, out, "identity accepted")

	f.OnProbe = func() error {
		return schema.NewError(schema.KindInvalidNodeIdentity, "locked\n\x1b[2Jok  identity accepted").WithReason(schema.ReasonNodeLocked)
	}
	code, out, errOut = runCommand(t, environ(c), "doctor")
	require.Equal(t, schema.ExitFailed, code)
	require.Contains(t, errOut, "1 of 12 checks found a fault, the first one in: identity accepted")
	require.Contains(t, out, "gpuaas node show "+c.NodeID)
	require.NotContains(t, out, "\x1b")
	require.Contains(t, out, "locked??[2Jok", "a server's text stays in its line")

	code, out, _ = runCommand(t, environ(c), "doctor", "-o", "json")
	require.Equal(t, schema.ExitFailed, code)
	require.Len(t, decode[diagnosis.Report](t, []byte(out)).Checks, 12)
}

// TestDoctorOfAnUnconfiguredNode: a damaged env file is a fault that the report names.
func TestDoctorOfAnUnconfiguredNode(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "node.env")
	require.NoError(t, os.WriteFile(file, []byte("GPUAAS_NODE_ID\n"), 0o600))
	code, out, errOut := runCommand(t, []string{EnvFileVar + "=" + file}, "doctor")
	require.Equal(t, schema.ExitFailed, code, errOut)
	require.Contains(t, out, "line 1: want KEY=value")
	require.Contains(t, out, "gpuaas node bootstrap-script NODE")
}

// TestDoctorWithoutPermission: a user who cannot read the env file needs no new bundle.
func TestDoctorWithoutPermission(t *testing.T) {
	t.Parallel()
	c := Config{EnvFile: "/etc/gpuaas/node-agent.env"}
	fault := schema.Wrap(schema.KindInvalidRequest, &os.PathError{Op: "open", Path: c.EnvFile, Err: fs.ErrPermission}, "reading %s", EnvFileVar)
	r := Diagnose(t.Context(), c, fault)
	faults := r.Faults()
	require.Len(t, faults, 1)
	require.Equal(t, "run the command as root", faults[0].Next)
}

// TestDoctorInAShellWithOtherValues: the gpuaas command uses a variable of the same name.
func TestDoctorInAShellWithOtherValues(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	file := filepath.Join(t.TempDir(), "node.env")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(environ(c), "\n")+"\n"), 0o600))
	env := []string{EnvFileVar + "=" + file, "GPUAAS_ENV=" + c.Env}
	code, out, errOut := runCommand(t, env, "doctor")
	require.Equal(t, schema.ExitDone, code, out+errOut)
	code, out, _ = runCommand(t, append(env, "GPUAAS_API_URL=http://127.0.0.1:8081"), "doctor")
	require.Equal(t, schema.ExitFailed, code)
	require.Contains(t, out, "unset GPUAAS_API_URL, and repeat the command")
	_, out, errOut = runCommand(t, append(env, "GPUAAS_API_URL="+strings.Replace(c.APIURL, "localhost", "LOCALHOST", 1)), "doctor")
	require.Contains(t, out, "identity accepted", "the other checks are made")
	require.Contains(t, errOut, "1 of 12 checks")
}

// TestDoctorUsesTheConfirmedCertificate: the use of a renewed certificate would promote it, and the
// running agent's own use of the one before would then lock the node.
func TestDoctorUsesTheConfirmedCertificate(t *testing.T) {
	t.Parallel()
	f, c := enrolledNode(t)
	state := disk.At(c.StateDir)
	var first identity.Meta
	_, err := state.ReadJSON(versionPath(c, 1), &first)
	require.NoError(t, err)
	install(f, c, f.ID, time.Now().Add(2*time.Hour))
	var renewed identity.Meta
	_, err = state.ReadJSON(versionPath(c, 1), &renewed)
	require.NoError(t, err)
	require.NoError(t, state.WriteJSON(versionPath(c, 1), first))
	require.NoError(t, state.WriteJSON(versionPath(c, 2), renewed))
	for _, proven := range []int{1, 2} {
		require.NoError(t, state.WriteJSON(state.File("identity.json"), map[string]int{"proven": proven}))
		r := Diagnose(t.Context(), c, nil)
		require.Empty(t, r.Faults())
	}
	serials := []string{}
	for _, m := range []identity.Meta{first, renewed} {
		leaf, err := trust.ParseCertificates(m.Certificate)
		require.NoError(t, err)
		serials = append(serials, trust.CertFactsOf(leaf[0]).Serial)
	}
	require.Equal(t, serials, f.Probed)
}

// TestDoctorOfADamagedState: a state that cannot be read is a fault, and the checks that need it
// are shown as skipped.
func TestDoctorOfADamagedState(t *testing.T) {
	t.Parallel()
	_, c := enrolledNode(t)
	require.NoError(t, os.WriteFile(filepath.Join(c.StateDir, "poll.json"), []byte("{torn"), 0o600))
	r := Diagnose(t.Context(), c, nil)
	all := checksOf(t, r)
	require.Len(t, r.Faults(), 1)
	require.Equal(t, diagnosis.Failed, all["state"].Result)
	require.Contains(t, all["state"].Answer, "poll.json")
	for _, name := range []string{"last poll", "verifier set", "workload driver"} {
		require.Equal(t, diagnosis.Skipped, all[name].Result, name)
	}
}

// TestDoctorOfASilentServer: a check ends after its time limit, however often it would repeat.
func TestDoctorOfASilentServer(t *testing.T) {
	t.Parallel()
	f, c := enrolledNode(t)
	var probes atomic.Int32
	silent := make(chan struct{})
	c.APIURL = foreign(t, f, func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			probes.Add(1)
			<-silent
			return
		}
		f.Serve(w, r)
	})
	t.Cleanup(func() { close(silent) }) // before the server waits for its requests
	r := Diagnose(t.Context(), c, nil)
	require.Len(t, r.Faults(), 1)
	require.Equal(t, int32(1), probes.Load(), "a request without an answer is not repeated")
}

// TestDoctorOfAnExpiredCertificate: a certificate that the server accepted once is a fault after
// its end.
func TestDoctorOfAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	f, c := enrolledNode(t)
	install(f, c, f.ID, time.Now().Add(-time.Minute))
	state := disk.At(c.StateDir)
	require.NoError(t, state.WriteJSON(state.File("identity.json"), map[string]int{"proven": 1}))
	all := checksOf(t, Diagnose(t.Context(), c, nil))
	require.Equal(t, diagnosis.Failed, all["certificate"].Result)
	require.Contains(t, all["certificate"].Answer, "expired")
	require.Equal(t, diagnosis.Skipped, all["identity accepted"].Result)
	require.Empty(t, f.Probed)
}

// TestDoctorOfAClockThatDrifts: a difference that the agent tolerates is no fault, but the answer
// advises to check it.
func TestDoctorOfAClockThatDrifts(t *testing.T) {
	t.Parallel()
	for behind, warns := range map[time.Duration]bool{0: false, 2 * time.Minute: true} {
		f, c := enrolledNode(t)
		c.APIURL = foreign(t, f, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(-behind).UTC().Format(http.TimeFormat))
			f.Serve(w, r)
		})
		clock := checksOf(t, Diagnose(t.Context(), c, nil))["clock"]
		require.Equal(t, diagnosis.OK, clock.Result, clock.Answer)
		require.Equal(t, warns, strings.Contains(clock.Answer, "check time synchronization"), clock.Answer)
	}
}
