package libvirt_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"context"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// image is the folder of ./task vm-image, relative to this package.
const image = "../../../bin/vm-image"

// nodeAPI answers the requests of one machine and records when they arrive.
type nodeAPI struct {
	*httptest.Server
	nodeID string
	// answers are the status codes of the next requests for the bundle; then it is issued.
	answers  chan int
	requests chan string
}

func newNodeAPI(t *testing.T) *nodeAPI {
	t.Helper()
	a := &nodeAPI{nodeID: uuid.NewString(), answers: make(chan int, 10), requests: make(chan string, 100)}
	a.Server = httptest.NewTLSServer(http.HandlerFunc(a.handle))
	t.Cleanup(a.Close)
	return a
}

func (a *nodeAPI) handle(w http.ResponseWriter, r *http.Request) {
	select {
	case a.requests <- r.Method + " " + r.URL.Path:
	default:
	}
	if r.URL.Path != "/internal/v1/bootstrap" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	select {
	case code := <-a.answers:
		w.WriteHeader(code)
		return
	default:
	}
	var req trust.BootstrapRequest
	if json.NewDecoder(r.Body).Decode(&req) != nil || req.Reference != reference {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	token, _, _ := trust.NewToken()
	key := base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize))
	_ = json.NewEncoder(w).Encode(trust.BootstrapBundle{
		NodeID: a.nodeID, EnrollmentToken: token, APIURL: a.url(), TaskSigningPubkeys: "active:k1:" + key, Env: "test",
		CABundlePath: trust.DefaultCABundlePath, NodeCertCABundlePath: trust.DefaultNodeCABundlePath, CertPath: trust.DefaultCertPath, KeyPath: trust.DefaultKeyPath,
		CABundlePEM: a.ca(), NodeCertCABundlePEM: a.ca(),
	})
}

// url is the address for machines: the certificate of httptest is for example.com.
func (a *nodeAPI) url() string {
	return "https://example.com:" + a.port()
}

func (a *nodeAPI) port() string {
	_, port, _ := net.SplitHostPort(a.Listener.Addr().String())
	return port
}

func (a *nodeAPI) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw}))
}

// next waits for a request.
func (a *nodeAPI) next(t *testing.T, prefix string) {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case got := <-a.requests:
			if strings.HasPrefix(got, prefix) {
				return
			}
		case <-timeout:
			require.FailNow(t, "no request", prefix)
		}
	}
}

// machineWithImage creates a machine with the image that ./task vm-image built.
func machineWithImage(t *testing.T, a *nodeAPI, change ...func(*libvirt.Settings)) (r *rig, created machine.Machine) {
	t.Helper()
	r = session(t)
	for _, f := range change {
		f(&r.settings)
	}
	for _, file := range []string{libvirt.KernelFile, libvirt.InitramfsFile} {
		data, err := os.ReadFile(filepath.Join(image, file))
		need.That(t, !os.IsNotExist(err), "there is no image; build it with ./task vm-image")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(r.state, file), data, 0o600))
		require.NoError(t, os.Chown(filepath.Join(r.state, file), host.Open(t).UID, -1))
	}
	r.settings.Hosts = map[string]string{"example.com": "10.0.2.2"}
	r = newRig(t, r.settings, r.Runner)
	m, err := r.provider.Create(t.Context(), spec(), func(context.Context) (activities.Boot, error) {
		return activities.Boot{BaseURL: a.url(), CABundlePEM: a.ca(), Reference: reference}, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			text, err := r.provider.Console(context.WithoutCancel(t.Context()), m.Ref)
			t.Logf("console: %s %v", text, err)
		}
	})
	return r, m
}

// The machine fetches its bundle, also if the node API is briefly unavailable, and starts the
// agent, which enrolls. The reference is not on its console.
func TestImageBoots(t *testing.T) { imageBoots(t) }

// TestImageBootsOverHTTP: iPXE loads the image from its server.
func TestImageBootsOverHTTP(t *testing.T) {
	_, err := os.Stat(ipxe)
	need.That(t, err == nil, "iPXE is not installed; run: sh tools/need.sh libvirt")
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	imageBoots(t, func(s *libvirt.Settings) {
		s.NetbootPort = ln.Addr().(*net.TCPAddr).Port
		server := libvirt.ImageServer(s.ImageBase)
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.Serve(ln) }()
	})
}

// ipxe is the file of Debian's package.
const ipxe = "/usr/lib/ipxe/ipxe.lkrn"

func imageBoots(t *testing.T, change ...func(*libvirt.Settings)) {
	t.Helper()
	a := newNodeAPI(t)
	a.answers <- http.StatusServiceUnavailable
	start := time.Now()
	r, m := machineWithImage(t, a, change...)
	created := time.Since(start)
	a.next(t, "POST /internal/v1/bootstrap")
	first := time.Since(start)
	a.next(t, "POST /internal/v1/bootstrap")
	a.next(t, "POST /internal/v1/nodes/"+a.nodeID+"/enroll")
	t.Logf("created after %s, first request after %s, enrollment after %s", created, first, time.Since(start))
	text, err := r.provider.Console(t.Context(), m.Ref)
	require.NoError(t, err)
	t.Logf("console:\n%s", text)
	require.Contains(t, string(text), "bundle received for node "+a.nodeID)
	require.NotContains(t, string(text), reference)
	require.NotContains(t, string(text), trust.TokenPrefix)
}

// A machine whose reference is rejected says so on its console and switches itself off.
func TestImageRejectedReference(t *testing.T) {
	a := newNodeAPI(t)
	a.answers <- http.StatusConflict
	r, m := machineWithImage(t, a)
	require.Eventually(t, func() bool {
		m, err := r.provider.Describe(t.Context(), m.Ref)
		return err == nil && m.Phase == machine.Stopped
	}, 2*time.Minute, 100*time.Millisecond)
	text, err := r.provider.Console(t.Context(), m.Ref)
	require.NoError(t, err)
	require.Contains(t, string(text), "fetching the bundle: the node API answers 409 Conflict")
	require.NotContains(t, string(text), reference)
}
