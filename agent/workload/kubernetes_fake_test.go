package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
)

// object is an object of fakeKube in the form of JSON.
type object = map[string]any

// fakeKube serves the part of the Kubernetes API that the driver uses, over mutual TLS, with
// the rights of the node gpu-1: it may not list nodes or delete a Node object, unless admin.
type fakeKube struct {
	t      *testing.T
	server *httptest.Server
	ca     authority
	folder string

	mu      sync.Mutex
	objects map[string]object // by path
	calls   []string          // method, path and query of each request that changes something
	users   []string          // common names of the clients, without repetition
	admin   bool
	budget  map[string]bool // pods that a disruption budget protects
	ignores bool            // pods stay after an eviction
	// before is called before each request is answered, under the lock. It reports whether it
	// answered.
	before  func(w http.ResponseWriter, r *http.Request) bool
	version int
}

// authority is a CA of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	require.NoError(t, err)
	c, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue returns a certificate and its key in PEM.
func (a authority) issue(t *testing.T, user string, hosts ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: user}, DNSNames: hosts,
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, private.Public(), a.key)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

const kubeServerName = "kubernetes.test"

// newFakeKube starts an API server with the node gpu-1 and pods.
func newFakeKube(t *testing.T, pods ...object) *fakeKube {
	t.Helper()
	f := &fakeKube{t: t, ca: newAuthority(t), folder: t.TempDir(), objects: map[string]object{}, budget: map[string]bool{}}
	f.put("/api/v1/nodes/gpu-1", nodeObject("gpu-1"))
	for _, p := range pods {
		f.put(podKey(p), p)
	}
	f.server = httptest.NewUnstartedServer(f)
	f.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	cert, key := f.ca.issue(t, "server", kubeServerName)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(f.ca.cert)
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12}
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	f.rotate("system:node:gpu-1")
	return f
}

// rotate replaces the client certificate that the kubeconfig names.
func (f *fakeKube) rotate(user string) {
	cert, key := f.ca.issue(f.t, user)
	require.NoError(f.t, os.WriteFile(filepath.Join(f.folder, "client.pem"), slices.Concat(cert, key), 0o600))
}

// kubeconfig writes a kubeconfig in which user and cluster have more lines, and returns its path.
func (f *fakeKube) kubeconfig(user, cluster string) string {
	path := filepath.Join(f.folder, "kubelet.kubeconfig")
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: default
contexts: [{name: default, context: {cluster: c, user: u}}]
clusters:
- name: c
  cluster:
    server: %s
    certificate-authority-data: %s
    tls-server-name: %s
%s
users:
- name: u
  user:
    client-certificate: client.pem
    client-key: client.pem
%s
`, f.server.URL, base64.StdEncoding.EncodeToString(f.ca.pem), kubeServerName, cluster, user)
	require.NoError(f.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// driver makes a driver with records in the folder of the double.
func (f *fakeKube) driver(cordoned *bool) *kubeDriver {
	f.t.Helper()
	made, err := NewKubernetes(Config{
		Kubernetes: Kubernetes{Kubeconfig: f.kubeconfig("", "")}, State: disk.At(f.folder), Changed: func() {},
		Cordoned: func() bool { f.mu.Lock(); defer f.mu.Unlock(); return *cordoned }, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(f.t, err)
	d, ok := made.(*kubeDriver)
	require.True(f.t, ok)
	return d
}

// direct makes a driver that calls the double without a network, as the node gpu-1, so that it may
// run in a bubble of synctest. The double must be made outside the bubble.
func (f *fakeKube) direct(cordoned *bool) *kubeDriver {
	f.t.Helper()
	d := f.driver(cordoned)
	api, err := d.connect()
	require.NoError(f.t, err)
	api.http.Transport = directly{f}
	return d
}

// directly is the transport of such a driver.
type directly struct{ kube *fakeKube }

// RoundTrip implements http.RoundTripper.
func (t directly) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "system:node:gpu-1"}}}}
	w := httptest.NewRecorder()
	t.kube.ServeHTTP(w, r)
	return w.Result(), r.Context().Err()
}

// set changes the double under its lock.
func (f *fakeKube) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// get returns an object under the lock, nil without one.
func (f *fakeKube) get(path string) object {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[path]
}

// put stores an object with a UID and a new version.
func (f *fakeKube) put(path string, o object) {
	f.version++
	meta := at(o, "metadata")
	meta["resourceVersion"] = fmt.Sprint(f.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", f.version)
	}
	f.objects[path] = o
}

// seen returns the requests that changed something.
func (f *fakeKube) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// at returns the object below a key, which it makes.
func at(o object, key string) object {
	if _, ok := o[key].(object); !ok {
		o[key] = object{}
	}
	return o[key].(object) //nolint:forcetypeassert // made above
}

func nodeObject(name string, labels ...string) object {
	marked := object{}
	for _, l := range labels {
		marked[l] = "true"
	}
	return object{"metadata": object{"name": name, "labels": marked}, "spec": object{},
		"status": object{"conditions": []any{object{"type": "Ready", "status": "True"}}}}
}

// podObject is a running pod of a ReplicaSet; change changes it.
func podObject(namespace, name string, change ...func(object)) object {
	o := object{
		"metadata": object{"name": name, "namespace": namespace, "ownerReferences": []any{object{"kind": "ReplicaSet", "controller": true}}},
		"spec":     object{"nodeName": "gpu-1"}, "status": object{"phase": "Running", "startTime": "2024-05-03T10:00:01Z"},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

func podKey(p object) string {
	m := at(p, "metadata")
	return fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", m["namespace"], m["name"])
}

// ServeHTTP implements http.Handler.
func (f *fakeKube) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	user := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if !slices.Contains(f.users, user) {
		f.users = append(f.users, user)
	}
	if f.before != nil && f.before(w, r) {
		return
	}
	switch status := f.refuses(user, r); {
	case status != 0:
		reject(w, status, "refused")
	case r.Method == http.MethodGet:
		f.read(w, r)
	default:
		f.change(w, r)
	}
}

// contentTypes returns the type of the body by method: that of a PATCH selects its semantics.
func contentTypes() map[string]string {
	return map[string]string{
		http.MethodPatch: "application/merge-patch+json", http.MethodPost: "application/json", http.MethodDelete: "application/json",
	}
}

// refuses applies the rights of a kubelet, which may list the pods of its own node only.
func (f *fakeKube) refuses(user string, r *http.Request) int {
	switch path := r.URL.Path; {
	case user == "":
		return http.StatusUnauthorized
	case r.Header.Get("Content-Type") != contentTypes()[r.Method]:
		return http.StatusUnsupportedMediaType
	case f.admin:
		return 0
	case path == "/api/v1/pods" && !slices.Contains(selectors(r), "spec.nodeName=gpu-1"):
		return http.StatusForbidden
	case path == "/api/v1/nodes", strings.Contains(path, "/leases/"), strings.HasPrefix(path, "/api/v1/nodes/") && (path != "/api/v1/nodes/gpu-1" || r.Method == http.MethodDelete):
		return http.StatusForbidden
	}
	return 0
}

func reject(w http.ResponseWriter, status int, message string, causes ...any) {
	w.WriteHeader(status)
	answer(w, object{"kind": "Status", "message": message, "code": status, "details": object{"causes": causes}})
}

func answer(w http.ResponseWriter, o object) {
	_ = json.NewEncoder(w).Encode(o) // the client may have left
}

// selectors returns the terms of the request's field selector.
func selectors(r *http.Request) []string {
	return strings.FieldsFunc(r.URL.Query().Get("fieldSelector"), func(c rune) bool { return c == ',' })
}

// selected reports whether a field selector for pods selects an object. Its terms are FIELD=VALUE and
// FIELD!=VALUE.
func selected(o object, terms []string) bool {
	for _, t := range terms {
		field, value, _ := strings.Cut(t, "=")
		field, not := strings.CutSuffix(field, "!")
		part, name, _ := strings.Cut(field, ".")
		if (at(o, part)[name] == value) == not {
			return false
		}
	}
	return true
}

// read answers a GET of an object or of a collection in pages.
func (f *fakeKube) read(w http.ResponseWriter, r *http.Request) {
	if o, ok := f.objects[r.URL.Path]; ok {
		answer(w, o)
		return
	}
	var paths []string
	for path := range f.objects {
		if path[:strings.LastIndex(path, "/")] == r.URL.Path || r.URL.Path == "/api/v1/pods" && strings.Contains(path, "/pods/") {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 && r.URL.Path != "/api/v1/pods" && r.URL.Path != "/api/v1/nodes" {
		reject(w, http.StatusNotFound, "not found")
		return
	}
	slices.Sort(paths)
	items := []any{}
	label := r.URL.Query().Get("labelSelector")
	for _, path := range paths {
		if _, marked := at(at(f.objects[path], "metadata"), "labels")[label]; (label == "" || marked) && selected(f.objects[path], selectors(r)) {
			items = append(items, f.objects[path])
		}
	}
	var start, limit int
	_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &start) // zero without one
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	meta, end := object{}, len(items)
	if limit > 0 && start+limit < end {
		end = start + limit
		meta["continue"] = fmt.Sprint(end)
	}
	answer(w, object{"metadata": meta, "items": items[start:end]})
}

// change answers all other requests.
func (f *fakeKube) change(w http.ResponseWriter, r *http.Request) {
	var body object
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		reject(w, http.StatusBadRequest, err.Error())
		return
	}
	path, eviction := strings.CutSuffix(r.URL.Path, "/eviction")
	options := body
	if eviction {
		options = at(body, "deleteOptions")
	}
	if options["dryRun"] == nil || r.URL.Query().Get("dryRun") != "All" {
		f.calls = append(f.calls, r.Method+" "+r.URL.RequestURI())
	}
	o, ok := f.objects[path]
	if !ok {
		reject(w, http.StatusNotFound, "not found")
		return
	}
	meta := at(o, "metadata")
	switch uid := at(options, "preconditions")["uid"]; {
	case r.Method != http.MethodPatch && uid != meta["uid"]:
		reject(w, http.StatusConflict, "the UID in the precondition does not match")
	case r.Method == http.MethodPatch:
		f.patch(w, r, path, body)
	case r.Method == http.MethodDelete && (options["gracePeriodSeconds"] == 0.0 || !strings.Contains(path, "/pods/")):
		delete(f.objects, path)
		answer(w, object{})
	case r.Method == http.MethodDelete:
		f.end(w, path)
	case body["apiVersion"] != "policy/v1" || body["kind"] != "Eviction":
		reject(w, http.StatusBadRequest, "not an Eviction")
	case f.budget[fmt.Sprint(meta["name"])]:
		reject(w, http.StatusTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.",
			object{"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods and has 2 currently"})
	case options["dryRun"] != nil:
		answer(w, object{})
	default:
		f.end(w, path)
	}
}

// end asks a pod to end within its grace period.
func (f *fakeKube) end(w http.ResponseWriter, path string) {
	if at(f.objects[path], "metadata")["deletionTimestamp"] = "2024-05-03T10:00:02Z"; !f.ignores {
		delete(f.objects, path)
	}
	answer(w, object{})
}

// patch applies a merge patch that has no nested objects below metadata and spec, and records
// who manages spec.unschedulable.
func (f *fakeKube) patch(w http.ResponseWriter, r *http.Request, path string, body object) {
	o := f.objects[path]
	for _, key := range []string{"uid", "resourceVersion"} {
		if want := at(body, "metadata")[key]; want != nil && want != at(o, "metadata")[key] {
			reject(w, http.StatusConflict, "the object has been modified")
			return
		}
	}
	for key, value := range at(body, "spec") {
		if value == nil {
			delete(at(o, "spec"), key)
		} else {
			at(o, "spec")[key] = value
		}
	}
	if _, ok := at(body, "spec")["unschedulable"]; ok {
		manage(o, r.URL.Query().Get("fieldManager"))
	}
	f.put(path, o)
	answer(w, o)
}

// manage records the manager of spec.unschedulable.
func manage(node object, manager string) {
	at(node, "metadata")["managedFields"] = []any{
		object{"manager": "kubelet", "fieldsV1": object{"f:status": object{}}},
		object{"manager": manager, "fieldsV1": object{"f:spec": object{"f:unschedulable": object{}}}},
	}
}

// byHand changes the node's spec.unschedulable as kubectl does.
func (f *fakeKube) byHand(on bool) {
	f.set(func() {
		o := f.objects["/api/v1/nodes/gpu-1"]
		at(o, "spec")["unschedulable"] = on
		manage(o, "kubectl-cordon")
		f.put("/api/v1/nodes/gpu-1", o)
	})
}

// unschedulable reports what the Node object says.
func (f *fakeKube) unschedulable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return at(f.objects["/api/v1/nodes/gpu-1"], "spec")["unschedulable"] == true
}
