package adminapi_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/audit"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	machines "github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// machine is a host's file system below a folder, with a systemctl that only
// records its arguments.
type machine struct {
	t    *testing.T
	root string
	bin  string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	for _, tool := range []string{"sh", "curl", "sha256sum", "tar"} {
		need.Program(t, tool, "run: sh tools/need.sh host")
	}
	m := &machine{t: t, root: filepath.Join(t.TempDir(), "a host's root"), bin: t.TempDir()}
	m.write("/etc/os-release", "NAME=x\nID=ubuntu\nID_LIKE=debian\n")
	stub := "#!/bin/sh\necho \"$*\" >>\"$DESTDIR/systemctl.log\"\n"
	curl, err := exec.LookPath("curl")
	require.NoError(t, err)
	noted := "#!/bin/sh\necho \"$*\" >>\"${0%/*}/arguments\"\nexec " + curl + " \"$@\"\n"
	slept := "#!/bin/sh\necho \"$*\" >>\"${0%/*}/sleeps\"\n"
	for name, text := range map[string]string{"systemctl": stub, "curl": noted, "sleep": slept} {
		require.NoError(t, os.WriteFile(filepath.Join(m.bin, name), []byte(text), 0o700))
	}
	return m
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(m.t, os.WriteFile(full, []byte(text), 0o600))
}

func (m *machine) read(path string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.root, path))
	require.NoError(m.t, err)
	return string(text)
}

// files lists what is there, with mode, content and the time of a stale name cut.
func (m *machine) files() map[string]string {
	m.t.Helper()
	out := map[string]string{}
	require.NoError(m.t, filepath.Walk(m.root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, rest, stale := strings.Cut(strings.TrimPrefix(path, m.root), ".stale-")
		if stale {
			_, below, _ := strings.Cut(rest, "/")
			name = strings.TrimSuffix(name+".stale/"+below, "/")
		}
		out[name] = info.Mode().String() + " " + string(text)
		return err
	}))
	return out
}

// run runs a shell text on the machine. It reports what was said and how it
// ended. No process of it may be given a secret as an argument.
func (m *machine) run(text string, args ...string) (said string, code int) {
	m.t.Helper()
	file := filepath.Join(m.t.TempDir(), "script.sh")
	require.NoError(m.t, os.WriteFile(file, []byte(text), 0o600))
	shell := "sh"
	if _, err := exec.LookPath("dash"); err == nil {
		shell = "dash"
	}
	cmd := exec.CommandContext(m.t.Context(), shell, append([]string{file}, args...)...)
	cmd.Env = append(os.Environ(), "DESTDIR="+m.root, "PATH="+m.bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		require.ErrorAs(m.t, err, new(*exec.ExitError))
	}
	arguments, _ := os.ReadFile(filepath.Join(m.bin, "arguments")) // there is none without a download
	assert.NotContains(m.t, string(arguments), trust.TokenPrefix)
	assert.NotContains(m.t, string(arguments), "Bearer")
	return string(out), cmd.ProcessState.ExitCode()
}

// slept lists the seconds of the pauses that scripts made; none takes any time.
func (m *machine) slept() []string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.bin, "sleeps"))
	if !errors.Is(err, fs.ErrNotExist) {
		require.NoError(m.t, err)
	}
	return strings.Fields(string(text))
}

func (d *backend) ask(t *testing.T, verb, body string, into any) {
	t.Helper()
	w := d.post(t, verb, body)
	require.Less(t, w.Code, 300, w.Body.String())
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), into))
}

// TestNoteOfAnEnrollment: who enrolls a node whose provider creates machines learns what else to do.
func TestNoteOfAnEnrollment(t *testing.T) {
	const note = "provider libvirt creates the machine of this node: gpuaas node provision gpu-1; an enrollment is for a host of your own"
	for name, c := range map[string]struct {
		mode  string
		state lifecycle.NodeState
		note  string
	}{
		"creates":  {"libvirt", lifecycle.NodeRegistered, note},
		"adopts":   {"manual", lifecycle.NodeRegistered, ""},
		"enrolled": {"libvirt", lifecycle.NodeActive, ""}, // the script is that of a reissue
	} {
		d, o := newBackend(), newOutlet(t)
		o.serve(t, d)
		d.node.State, d.node.OnboardingMode = c.state, c.mode
		d.providers = []machines.Provider{{Info: machines.Info{Name: "libvirt", Creates: true}}, {Info: machines.Info{Name: "manual"}}}
		var script wire.BootstrapScriptResponse
		d.ask(t, "bootstrap-script", "", &script)
		assert.Equal(t, c.note, script.Note, name)
		if c.state == lifecycle.NodeRegistered {
			var started wire.LifecycleResponse
			d.ask(t, "enroll", "", &started)
			assert.Equal(t, c.note, started.Note, name)
		}
	}
}

func TestReissue(t *testing.T) {
	d := newBackend()
	d.node.State = lifecycle.NodeOffline
	var answer wire.LifecycleResponse
	d.ask(t, "reissue-enrollment", `{"reason":"the CA changed"}`, &answer)
	assert.Equal(t, []string{"trust", "submit", "issue"}, d.steps)
	assert.Equal(t, lifecycle.ActionReissueEnrollment, d.submitted.Action)
	assert.Equal(t, trust.PurposeReissue, d.minted.Purpose)
	assert.Nil(t, answer.BootstrapBundle)
	require.NotNil(t, answer.RecoveryBundle)
	_, hash, err := trust.ParseToken(answer.RecoveryBundle.EnrollmentToken)
	require.NoError(t, err)
	assert.Equal(t, d.minted.Hash, hash)
	assert.NotContains(t, answer.RecoveryBundle.RestartCommand[:20], "\n")
	w := d.post(t, "reissue-enrollment", `{"options":{"drain":true}}`)
	assert.Equal(t, http.StatusBadRequest, w.Code)
}

// The restart command is run as it would be typed.
func TestRestartCommand(t *testing.T) {
	m, d := newMachine(t), newBackend()
	d.ca = "-----BEGIN CERTIFICATE-----\nMIIB$(touch /tmp/x)`id`'\"\\\n-----END CERTIFICATE-----\n"
	m.write(trust.DefaultCertPath, "old cert")
	m.write(trust.DefaultKeyPath, "old key")
	m.write(trust.DefaultNodeCABundlePath, "old node CA")
	m.write(trust.DefaultCABundlePath, "old CA")
	m.write("/srv/state/identity/1/cert.pem", "old cert")
	m.write("/srv/state/next-key.json", "old key")
	m.write("/srv/state/removed.json", "removed")
	m.write("/srv/state/recovery-key.pem", "old recovery")
	m.write("/srv/state/journal/1", "work")
	m.write(trust.DefaultEnvFile, "GPUAAS_NODE_ID=\""+d.node.ID+"\"\nGPUAAS_ENROLLMENT_TOKEN=old\nGPUAAS_STATE_DIR=\"/srv/state\"\n"+
		"GPUAAS_WORKLOAD_DRIVER=docker\nBROKEN=\"half\n$(reboot)\n")
	var answer wire.LifecycleResponse
	d.ask(t, "reissue-enrollment", "", &answer)
	command := answer.RecoveryBundle.RestartCommand
	assert.NotContains(t, command, "\n", "one line")

	said, code := m.run(command)
	require.Zero(t, code, said)
	want := map[string]string{
		"/etc/os-release":                        "-rw------- NAME=x\nID=ubuntu\nID_LIKE=debian\n",
		trust.DefaultCertPath + ".stale":         "-rw------- old cert",
		trust.DefaultKeyPath + ".stale":          "-rw------- old key",
		trust.DefaultNodeCABundlePath + ".stale": "-rw------- old node CA",
		trust.DefaultCABundlePath:                "-rw-r--r-- " + d.ca,
		trust.DefaultNodeCABundlePath:            "-rw-r--r-- " + d.ca,
		"/srv/state/identity.stale/1/cert.pem":   "-rw------- old cert",
		"/srv/state/next-key.json.stale":         "-rw------- old key",
		"/srv/state/removed.json.stale":          "-rw------- removed",
		"/srv/state/recovery-key.pem.stale":      "-rw------- old recovery",
		"/srv/state/journal/1":                   "-rw------- work",
		trust.DefaultEnvFile: "-rw------- GPUAAS_STATE_DIR=\"/srv/state\"\nGPUAAS_WORKLOAD_DRIVER=docker\n" +
			answer.RecoveryBundle.EnvFile(),
		"/systemctl.log": "",
	}
	got := m.files()
	assert.Contains(t, got["/systemctl.log"], "stop gpuaas-node-agent.service\nrestart gpuaas-node-agent.service\n")
	got["/systemctl.log"] = ""
	assert.Equal(t, want, got)
	assert.NotContains(t, said, trust.TokenPrefix)

	// What another node left on this host goes as a whole.
	m.write(trust.DefaultEnvFile, "GPUAAS_NODE_ID=another\nGPUAAS_STATE_DIR=/srv/state\n")
	said, code = m.run(command)
	require.Zero(t, code, said)
	assert.Contains(t, m.files(), "/srv/state.stale/journal/1")
	assert.NotContains(t, m.files(), "/srv/state/journal/1")

	// Again, with what a second reissue gives.
	d.ask(t, "reissue-enrollment", `{"reason":"again"}`, &answer)
	m.write(trust.DefaultCertPath, "next cert")
	said, code = m.run(answer.RecoveryBundle.RestartCommand)
	require.Zero(t, code, said)
	assert.Contains(t, m.read(trust.DefaultEnvFile), answer.RecoveryBundle.EnrollmentToken)
	assert.NotContains(t, m.files(), trust.DefaultCertPath)
}

// outlet serves packages and bundles as the node API does.
type outlet struct {
	archive []byte
	fetched int
	auth    string
	// busy answers a request instead of the outlet if it returns true.
	busy func(w http.ResponseWriter, r *http.Request) bool
}

func (o *outlet) digest() string {
	sum := sha256.Sum256(o.archive)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (o *outlet) serve(t *testing.T, d *backend) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, r *http.Request) {
		o.auth = r.Header.Get("Authorization")
		_, _ = w.Write(o.archive)
	}
	mux.HandleFunc("GET /internal/v1/packages/{digest}", send)
	mux.HandleFunc("GET /v2/gpuaas/node-agent/blobs/{digest}", send)
	mux.HandleFunc("POST /internal/v1/bootstrap", func(w http.ResponseWriter, r *http.Request) {
		o.fetched++
		var req trust.BootstrapRequest
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&req))
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		b, err := d.exchange().Fetch(r.Context(), req.Reference, audit.Subject{Actor: "fetch"})
		if err != nil {
			w.WriteHeader(http.StatusConflict)
			return
		}
		_ = json.NewEncoder(w).Encode(b)
	})
	mux.HandleFunc("POST /internal/v1/bootstrap/script", func(w http.ResponseWriter, r *http.Request) {
		var req trust.BootstrapRequest
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&req))
		_, text, err := d.exchange().Script(r.Context(), req.Reference, audit.Subject{Actor: "fetch"})
		if err != nil {
			w.WriteHeader(schema.KindOf(err).Info().HTTP)
			return
		}
		_, _ = io.WriteString(w, text)
	})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.busy == nil || !o.busy(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	d.url = s.URL
	d.ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	d.pack = &trust.AgentPackage{OCIRef: s.URL + "/internal/v1/packages/" + o.digest(), Digest: o.digest(),
		PullDeliveryMode: adminapi.DeliverArchive, InstallRoot: trust.DefaultInstallRoot,
		EnvFilePath: trust.DefaultEnvFile, SystemdUnitName: trust.DefaultSystemdUnit}
	return s
}

// newOutlet packs a binary that only prints its version with the real installer.
func newOutlet(t *testing.T) *outlet {
	t.Helper()
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	archive := tar.NewWriter(zip)
	for name, text := range map[string]string{"gpuaas-node-agent": "#!/bin/sh\necho v1\n", "install-node-agent.sh": "", "gpuaas-node-agent.service": ""} {
		if text == "" {
			raw, err := os.ReadFile("../../deploy/package/" + name)
			require.NoError(t, err)
			text = string(raw)
		}
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := archive.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	require.NoError(t, zip.Close())
	return &outlet{archive: buf.Bytes()}
}

func (d *backend) bootstrap(t *testing.T, body string) string {
	t.Helper()
	var answer wire.BootstrapScriptResponse
	d.ask(t, "bootstrap-script", body, &answer)
	assert.WithinDuration(t, d.minted.ExpiresAt, answer.ExpiresAt, 0)
	return answer.Script
}

func TestBootstrapScript(t *testing.T) {
	for name, body := range map[string]string{"with the token": "", "with a reference": `{"fetch_ref":true}`} {
		t.Run(name, func(t *testing.T) {
			m, d, o := newMachine(t), newBackend(), newOutlet(t)
			d.node.State = lifecycle.NodeRegistered
			o.serve(t, d)
			m.write(trust.DefaultCertPath, "old cert")
			m.write(trust.DefaultKeyPath, "old key")
			m.write(trust.DefaultEnvFile, "GPUAAS_WORKLOAD_DRIVER=systemd\nrubbish \x01\n")
			text := d.bootstrap(t, body)
			assert.Equal(t, lifecycle.ActionEnroll, d.submitted.Action)

			said, code := m.run(text)
			require.Zero(t, code, said)
			got := m.files()
			for path, want := range map[string]string{
				trust.DefaultCertPath + ".stale":                    "-rw------- old cert",
				trust.DefaultKeyPath + ".stale":                     "-rw------- old key",
				trust.DefaultCABundlePath:                           "-rw-r--r-- " + strings.TrimSpace(d.ca),
				trust.DefaultNodeCABundlePath:                       "-rw-r--r-- " + strings.TrimSpace(d.ca),
				trust.DefaultInstallRoot + "/bin/gpuaas-node-agent": "-rwxr-xr-x #!/bin/sh\necho v1\n",
			} {
				assert.Equal(t, want, strings.TrimSpace(got[path])+map[bool]string{true: "\n"}[strings.HasSuffix(want, "\n")], path)
			}
			env := got[trust.DefaultEnvFile]
			assert.True(t, strings.HasPrefix(env, "-rw------- GPUAAS_WORKLOAD_DRIVER=systemd\n"), env)
			assert.NotContains(t, env, "rubbish")
			bundle := trust.BootstrapBundle{NodeID: d.node.ID, APIURL: d.url, Env: "test",
				EnrollmentToken: tokenOf(t, env), CABundlePath: trust.DefaultCABundlePath,
				TaskSigningPubkeys:   trust.VerifierKeys{{State: trust.KeyActive, KeyID: "k", Public: make([]byte, 32)}}.String(),
				NodeCertCABundlePath: trust.DefaultNodeCABundlePath, CertPath: trust.DefaultCertPath, KeyPath: trust.DefaultKeyPath}
			_, rest, _ := strings.Cut(env, "systemd\n")
			assert.ElementsMatch(t, strings.Split(bundle.EnvFile(), "\n"), strings.Split(rest, "\n"))
			_, hash, err := trust.ParseToken(bundle.EnrollmentToken)
			require.NoError(t, err)
			assert.Equal(t, d.minted.Hash, hash, "the token on the host is the one in the database")
			assert.Equal(t, trust.PurposeEnroll, d.minted.Purpose)
			for _, folder := range []string{"/opt", "/opt/gpuaas", trust.DefaultInstallRoot, "/var/lib/gpuaas", "/etc/gpuaas"} {
				info, err := os.Stat(filepath.Join(m.root, folder))
				require.NoError(t, err)
				assert.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "anyone may look into %s", folder)
			}
			unit := got["/etc/systemd/system/"+trust.DefaultSystemdUnit]
			assert.Contains(t, unit, "ExecStart="+trust.DefaultInstallRoot+"/bin/gpuaas-node-agent run\n")
			assert.Contains(t, unit, "GPUAAS_NODE_AGENT_ENV_FILE="+trust.DefaultEnvFile+"\n")
			assert.NotRegexp(t, `@[A-Z_]+@`, unit, "a placeholder of the template")
			assert.True(t, strings.HasSuffix(got["/systemctl.log"], "restart gpuaas-node-agent.service\n"), got["/systemctl.log"])
			assert.NotContains(t, said, trust.TokenPrefix)
			if body != "" {
				assert.NotContains(t, text, bundle.EnrollmentToken)
			}

			// Not twice blindly.
			said, code = m.run(text)
			assert.Equal(t, 3, code, said)
			assert.Equal(t, got, m.files())
			m.write(trust.DefaultCertPath, "the enrolled one")
			got = m.files()
			said, code = m.run(text, "--force")
			assert.Equal(t, 3, code, "its token is claimed: it would only take away what works: %s", said)
			assert.Equal(t, got, m.files())
			said, code = m.run(d.bootstrap(t, body), "--force")
			require.Zero(t, code, said)
			assert.NotContains(t, m.files(), trust.DefaultCertPath)
		})
	}
}

func tokenOf(t *testing.T, env string) string {
	t.Helper()
	_, rest, ok := strings.Cut(env, `GPUAAS_ENROLLMENT_TOKEN="`)
	require.True(t, ok, env)
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

// A script waits while the node API limits its address, and while a request fails that a later
// one may not: at least as long as Retry-After, and longer each time.
func TestBootstrapWaits(t *testing.T) {
	t.Parallel()
	reject := func(status int, after string, on string, times int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasPrefix(r.URL.Path, on) || times == 0 {
				return false
			}
			times--
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Retry-After", after)
			w.WriteHeader(status)
			return true
		}
	}
	const packages, bundle = "/internal/v1/packages/", "/internal/v1/bootstrap"
	for name, c := range map[string]struct {
		busy  func(http.ResponseWriter, *http.Request) bool
		slept []string
		code  int
		says  string
	}{
		"limited":             {reject(429, "5", packages, 9), strings.Fields("5 5 8 16 16 16 16 16 16"), 0, "(status 429)"},
		"a long Retry-After":  {reject(503, "0120", packages, 1), []string{"120"}, 0, "retrying in 120 s"},
		"a date":              {reject(503, "Fri, 01 Jan 2027 00:00:00 GMT", packages, 2), []string{"2", "4"}, 0, "(status 503)"},
		"a lost connection":   {reject(0, "", packages, 1), []string{"2"}, 0, "retrying in 2 s"},
		"the bundle":          {reject(429, "1", bundle, 2), []string{"2", "4"}, 0, "(status 429)"},
		"too long":            {reject(429, "300", packages, -1), []string{"300", "300", "300"}, 1, "could not be downloaded"},
		"not of a lost fetch": {reject(0, "", bundle, -1), []string{}, 1, "returned no bundle"},
		"not of a gateway's":  {reject(502, "1", bundle, -1), []string{}, 1, "returned no bundle"},
		"not without access":  {reject(403, "1", packages, -1), []string{}, 1, "could not be downloaded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, d, o := newMachine(t), newBackend(), newOutlet(t)
			o.busy = c.busy
			o.serve(t, d)
			said, code := m.run(d.bootstrap(t, `{"fetch_ref":true}`))
			assert.Equal(t, c.code, code, said)
			assert.Equal(t, c.slept, m.slept(), said)
			assert.Contains(t, said, c.says)
		})
	}
}

// Whatever is wrong before the installation leaves the host as it was and the
// reference unspent.
func TestBootstrapRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*machine, *backend, *outlet)
		says  string
		spent int
	}{
		"another package": {func(_ *machine, _ *backend, o *outlet) { o.archive = append(o.archive, 0) }, "has digest sha256:", 0},
		"no such package": {func(_ *machine, d *backend, _ *outlet) { d.pack.OCIRef += "x/y" }, "could not be downloaded", 0},
		"another host":    {func(m *machine, _ *backend, _ *outlet) { m.write("/etc/os-release", "ID=fedora\n") }, "neither Debian nor Ubuntu", 0},
		"a server we do not know": {func(_ *machine, d *backend, _ *outlet) {
			d.ca = "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
		}, "curl", 0},
		"a spent reference": {func(_ *machine, d *backend, _ *outlet) {
			d.fetchErr = schema.NewError(schema.KindTokenConsumed, "spent")
		}, "spent", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, d, o := newMachine(t), newBackend(), newOutlet(t)
			o.serve(t, d)
			m.write(trust.DefaultCertPath, "old cert")
			c.spoil(m, d, o)
			before := m.files()
			said, code := m.run(d.bootstrap(t, `{"fetch_ref":true}`))
			assert.NotZero(t, code)
			assert.Contains(t, said, c.says)
			assert.Equal(t, before, m.files(), "nothing was changed")
			assert.Equal(t, c.spent, o.fetched)
			assert.Equal(t, lifecycle.ActionReissueEnrollment, d.submitted.Action, "a node that is known is reissued")
		})
	}
	d := newBackend()
	w := d.post(t, "bootstrap-script", "")
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.Contains(t, w.Body.String(), "no_package")
	assert.Equal(t, []string{"trust"}, d.steps)
}

// A package of a registry is pulled as a blob with the pull credential. A script
// with a reference does not hold that: it comes in the bundle.
func TestPackageFromRegistry(t *testing.T) {
	for name, body := range map[string]string{"with the token": "", "with a reference": `{"fetch_ref":true}`} {
		t.Run(name, func(t *testing.T) {
			m, d, o := newMachine(t), newBackend(), newOutlet(t)
			s := o.serve(t, d)
			d.pack.OCIRef = strings.TrimPrefix(s.URL, "https://") + "/gpuaas/node-agent@" + o.digest()
			d.pack.PullDeliveryMode, d.pack.PullToken = adminapi.DeliverRegistry, "stale.lived-0"
			trusted := filepath.Join(t.TempDir(), "ca.pem")
			require.NoError(t, os.WriteFile(trusted, []byte(d.ca), 0o600))
			t.Setenv("CURL_CA_BUNDLE", trusted) // a registry is trusted as the host trusts it
			if body == "" {
				d.pack.PullToken = "short.lived-1"
			}
			text := d.bootstrap(t, body)
			d.pack.PullToken = "short.lived-1" // while the script waited
			if body != "" {
				assert.NotContains(t, text, "lived")
			}
			said, code := m.run(text)
			require.Zero(t, code, said)
			assert.Equal(t, "Bearer short.lived-1", o.auth)
			assert.NotContains(t, said, "short.lived-1")
			input, err := json.Marshal(d.submitted)
			require.NoError(t, err)
			assert.NotContains(t, string(input), "lived", "no workflow has the credential")
		})
	}
}

// Every form of the script parses as a shell program, and a script with a reference
// contains no secret.
func TestScriptsParse(t *testing.T) {
	for name, token := range map[string]string{"archive": "-", "registry": "", "registry with a credential": "short.lived-1"} {
		for _, body := range []string{"", `{"fetch_ref":true}`} {
			d, o := newBackend(), newOutlet(t)
			o.serve(t, d)
			if token != "-" {
				d.pack.OCIRef, d.pack.PullToken = "registry.test:5000/gpuaas/node-agent@"+o.digest(), token
				d.pack.PullDeliveryMode = adminapi.DeliverRegistry
			}
			parses(t, name+body, d.bootstrap(t, body))
		}
	}
	var answer wire.LifecycleResponse
	newBackend().ask(t, "reissue-enrollment", "", &answer)
	parses(t, "restart command", answer.RecoveryBundle.RestartCommand)
}

// parses has the shell read a program without running it.
func parses(t *testing.T, name, text string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-n")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", name, out)
}

// A reference is spent only when its bundle can be made.
func TestFetchOrder(t *testing.T) {
	d := newBackend()
	d.minted.Purpose = trust.PurposeReissue
	reference, _, _ := trust.NewToken()
	by := audit.Subject{Actor: "fetch:10.0.0.1", CorrelationID: "c"}
	d.trustErr = schema.NewError(schema.KindServiceUnavailable, "away")
	_, err := d.exchange().Fetch(t.Context(), reference, by)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindServiceUnavailable})
	_, err = d.exchange().Fetch(t.Context(), "x", by)
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindUnauthenticated})
	assert.Equal(t, []string{"trust"}, d.steps)

	d.trustErr, d.steps = nil, nil
	b, err := d.exchange().Fetch(t.Context(), reference, by)
	require.NoError(t, err)
	assert.Equal(t, []string{"trust", "spend", "issue"}, d.steps)
	assert.Equal(t, trust.PurposeReissue, d.minted.Purpose)
	assert.Equal(t, by, d.by)
	assert.Equal(t, d.minted.ExpiresAt.Format(time.RFC3339), b.ExpiresAt)
}

// The life of a token counts from the database's time, whatever this machine's clock says.
func TestTokenExpiresByTheDatabasesClock(t *testing.T) {
	for name, body := range map[string]string{"with the token": "", "with a reference": `{"fetch_ref":true}`} {
		t.Run(name, func(t *testing.T) {
			d := newBackend()
			d.node.State = lifecycle.NodeRegistered
			newOutlet(t).serve(t, d)
			d.expiry = time.Date(2040, 1, 2, 3, 4, 5, 0, time.UTC)
			var answer wire.BootstrapScriptResponse
			d.ask(t, "bootstrap-script", body, &answer)
			assert.Equal(t, d.expiry, d.minted.ExpiresAt)
			assert.Equal(t, d.expiry, answer.ExpiresAt)
		})
	}
}
