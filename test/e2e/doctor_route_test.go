package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/agenttest"
)

// ingress is what may be in front of the node API.
type ingress struct {
	t *testing.T
	// to is the URL of the node API.
	to string
	// ca is trusted by the node, like that of an installation's own proxy.
	ca agenttest.Authority
	// api are the CAs of the node API's certificate.
	api *x509.CertPool
}

// serve starts a server at localhost and returns its URL.
func (i ingress) serve(conf *tls.Config, h http.Handler) string {
	s := httptest.NewUnstartedServer(h)
	s.TLS = conf
	s.StartTLS()
	i.t.Cleanup(s.Close)
	return "https://localhost:" + strconv.Itoa(s.Listener.Addr().(*net.TCPAddr).Port)
}

// own is the configuration of a server that the node trusts.
func (i ingress) own() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{i.ca.Server(i.t)}, MinVersion: tls.VersionTLS13}
}

// notFound is another server: its routes do not have the node API's.
func (i ingress) notFound() string { return i.serve(i.own(), http.NotFoundHandler()) }

// broken ends each connection before it sends a certificate, like a router without a route for the
// name.
func (i ingress) broken() string {
	l, err := net.Listen("tcp", "localhost:0")
	require.NoError(i.t, err)
	i.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return "https://localhost:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// foreign has a certificate of a CA that the node does not trust.
func (i ingress) foreign() string {
	conf := i.own()
	conf.Certificates = []tls.Certificate{agenttest.NewAuthority(i.t, "other ca").Server(i.t)}
	return i.serve(conf, http.NotFoundHandler())
}

// strict requires certificates of another CA than that of the nodes.
func (i ingress) strict() string {
	conf := i.own()
	conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	conf.ClientCAs.AddCert(agenttest.NewAuthority(i.t, "old node ca").Cert)
	return i.serve(conf, http.NotFoundHandler())
}

// ending ends TLS in front of the real node API, which then receives no certificate.
func (i ingress) ending() string {
	to, err := url.Parse(i.to)
	require.NoError(i.t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: i.api, MinVersion: tls.VersionTLS13}}}
	conf := i.own()
	conf.ClientAuth = tls.RequestClientCert
	return i.serve(conf, proxy)
}

// types runs a command line on the machine, where the programs of the installation are on the PATH. It
// returns what the command writes to stdout, whatever its exit code.
func (m *machine) types(line string) []byte {
	m.t.Helper()
	c := exec.CommandContext(m.t.Context(), "sh", "-c", line)
	c.Env = append(m.env(), "PATH="+filepath.Dir(shared.Bin)+":"+os.Getenv("PATH"))
	out, err := c.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(m.t, err, line)
	}
	return out
}

// diagnose runs the doctor of the installed agent.
func (m *machine) diagnose() (report []byte, r diagnosis.Report) {
	m.t.Helper()
	report = m.types("gpuaas-node-agent doctor -o json")
	require.NoError(m.t, json.Unmarshal(report, &r), "%s", report)
	return report, r
}

// configure restarts the agent with the URL of a node API, and with CAs that sign its certificate.
func (m *machine) configure(b trust.BootstrapBundle, address string, ca agenttest.Authority) {
	m.t.Helper()
	m.stop()
	b.APIURL, b.WorkloadDriver = address, "none"
	b.CABundlePath, b.NodeCertCABundlePath = m.path(b.CABundlePath), m.path(b.NodeCertCABundlePath)
	b.CertPath, b.KeyPath = m.path(b.CertPath), m.path(b.KeyPath)
	m.write(trust.DefaultEnvFile, b.EnvFile(), 0o600)
	m.write(trust.DefaultCABundlePath, b.CABundlePEM+string(ca.PEM), 0o600)
	m.start()
}

// TestDoctorNamesTheRoute: the installed agent meets each fault of the way to the node API. gpuaas doctor
// sends the operator to the doctor on the node, which names what it asked, what came back, the owner
// and the next step; gpuaas doctor shows the same with its own view. After the correction, neither
// finds a fault.
func TestDoctorNamesTheRoute(t *testing.T) {
	nodeHost, id := register(t, "route")
	file := filepath.Join(t.TempDir(), "bundle.json")
	ok(t, "node", "enroll", nodeHost, "--no-wait", "--bundle", file)
	bundle := readPrivate[trust.BootstrapBundle](t, file)
	m := newMachine(t, nodeHost, bundle)
	i := ingress{t, bundle.APIURL, agenttest.NewAuthority(t, "ingress ca"), x509.NewCertPool()}
	require.True(t, i.api.AppendCertsFromPEM([]byte(bundle.CABundlePEM)))
	m.configure(bundle, bundle.APIURL, i.ca)
	eventually(t, "active", func() bool { return show(t, nodeHost).State == lifecycle.NodeActive })
	requireCured(t, m, nodeHost)

	for _, c := range []struct {
		name, check string
		url         func() string
		owner       diagnosis.Owner
		answer      string
		next        string
		// command is the part of the next step that is one, and shows what it prints.
		command, shows string
	}{
		{"wrong route", "route", i.notFound, diagnosis.Ingress, "status 404, not from the node API", "check GPUAAS_API_URL in " + m.path(trust.DefaultEnvFile), "", ""},
		{"no certificate", "server certificate", i.broken, diagnosis.Ingress, "before it sent a certificate", "in the load balancer's log",
			`openssl s_client -connect \S+ -servername \S+`, "no peer certificate available"},
		{"unknown CA of the server", "server certificate", i.foreign, diagnosis.Operator, "CN=other ca", "check the hosts file, DNS and the load balancer", "", ""},
		{"unknown CA of the node", "identity accepted", i.strict, diagnosis.ControlPlane, "unknown certificate authority", "compare the issuer with trusted_cas",
			`gpuaas node show \S+ -o json`, `"trusted_cas"`},
		{"a proxy that ends TLS", "identity accepted", i.ending, diagnosis.Ingress, "status 401, invalid_node_identity (no_certificate)", "pass TCP through", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.configure(bundle, c.url(), i.ca)
			query(t, nil, "UPDATE nodes SET last_heartbeat_at = now() - interval '10 minutes', state_since = now() - interval '10 minutes' WHERE node_id = $1", id)
			seen := decode[diagnosis.Report](t, run(t, "doctor", nodeHost, "-o", "json"))
			require.NotEmpty(t, seen.Faults())
			first := seen.Faults()[0]
			require.Equal(t, []any{"last heartbeat", diagnosis.Node}, []any{first.Name, first.Owner})
			onNode, found := strings.CutPrefix(first.Next, "on the node: ")
			require.True(t, found, first.Next)
			read := string(m.types(strings.TrimPrefix(onNode, "/opt/gpuaas/node-agent/bin/"))) // the machine is a folder

			raw, report := m.diagnose()
			fault := report.Faults()[0]
			require.Equal(t, []any{c.check, c.owner}, []any{fault.Name, fault.Owner}, "%s", raw)
			require.Contains(t, fault.Answer, c.answer)
			require.Contains(t, fault.Next, c.next)
			for _, shown := range []string{c.answer, string(c.owner), c.next} {
				require.Contains(t, read, shown)
			}
			if c.command != "" {
				command := regexp.MustCompile(c.command).FindString(fault.Next)
				require.NotEmpty(t, command, fault.Next)
				if strings.HasPrefix(command, "gpuaas ") {
					require.Contains(t, typed(t, nodeHost, command).stdout, c.shows)
				} else {
					require.Contains(t, string(m.types(command)), c.shows)
				}
			}
			require.NotContains(t, string(raw), trust.TokenPrefix)
			requireMerged(t, nodeHost, raw, fault)

			m.configure(bundle, bundle.APIURL, i.ca)
			requireCured(t, m, nodeHost)
		})
	}
	t.Run("locked", func(t *testing.T) { lockedRoute(t, m, nodeHost) })
}

// lockedRoute: the doctor on the node names the lock, and gpuaas doctor the command that ends it.
func lockedRoute(t *testing.T, m *machine, nodeHost string) {
	t.Helper()
	ok(t, "node", "lock", nodeHost, "--reason", "key leaked")
	var raw []byte
	var fault diagnosis.Check
	eventually(t, "the node API rejects the node", func() bool {
		var r diagnosis.Report
		raw, r = m.diagnose()
		faults := r.Faults()
		if len(faults) == 0 {
			return false
		}
		fault = faults[0]
		return fault.Name == "identity accepted"
	})
	require.Contains(t, fault.Answer, "status 401, invalid_node_identity ("+schema.ReasonNodeLocked+")")
	require.Equal(t, diagnosis.Operator, fault.Owner)
	first := requireMerged(t, nodeHost, raw, fault)
	require.Equal(t, "identity", first.Name)
	typed(t, nodeHost, first.Next)
	m.stop() // an agent whose identity was locked pauses between its polls
	m.start()
	requireCured(t, m, nodeHost)
}

// requireMerged requires that gpuaas doctor shows the fault that the node found, and returns the first
// fault of all, which is its own.
func requireMerged(t *testing.T, nodeHost string, raw []byte, fault diagnosis.Check) (first diagnosis.Check) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.json")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	r := run(t, "doctor", nodeHost, "--node-report", file, "-o", "json")
	require.Equal(t, schema.ExitFailed, r.code, r.stderr)
	merged := decode[diagnosis.Report](t, r)
	faults := merged.Faults()
	at := slices.IndexFunc(faults, func(c diagnosis.Check) bool { return c.Name == "node: "+fault.Name })
	require.Positive(t, at, r.stdout)
	require.Equal(t, []any{fault.Asked, fault.Owner, fault.Next}, []any{faults[at].Asked, faults[at].Owner, faults[at].Next})
	return faults[0]
}

// requireCured requires that neither doctor finds a fault. The first poll after a fault stays open until
// its time ends, and the doctor on the node shows the one before meanwhile.
func requireCured(t *testing.T, m *machine, nodeHost string) {
	t.Helper()
	var here result
	var there []byte
	defer func() {
		if t.Failed() {
			t.Log(here.stdout, here.stderr, string(there))
		}
	}()
	eventually(t, "neither doctor finds a fault", func() bool {
		var r diagnosis.Report
		there, r = m.diagnose()
		here = run(t, "doctor", nodeHost)
		return here.code == schema.ExitDone && !slices.ContainsFunc(r.Faults(), func(c diagnosis.Check) bool { return c.Name != "last poll" })
	})
}
