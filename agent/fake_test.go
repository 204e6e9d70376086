package agent

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// authority is a certificate authority for one test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(tb testing.TB, name string) authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(tb, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(tb, err)
	return authority{key, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a authority) sign(tb testing.TB, tmpl *x509.Certificate, pub any) []byte {
	tb.Helper()
	tmpl.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	if tmpl.NotBefore.IsZero() {
		tmpl.NotBefore = time.Now().Add(-time.Minute)
	}
	if tmpl.NotAfter.IsZero() {
		tmpl.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, pub, a.key)
	require.NoError(tb, err)
	return der
}

func (a authority) server(tb testing.TB) tls.Certificate {
	tb.Helper()
	return a.serverWith(tb, &x509.Certificate{DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a authority) serverWith(tb testing.TB, tmpl *x509.Certificate) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	der := a.sign(tb, tmpl, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// node makes a certificate for a node's key.
func (a authority) node(tb testing.TB, id trust.Identity, pub any, notAfter time.Time) []byte {
	tb.Helper()
	return a.nodeFrom(tb, id, pub, time.Time{}, notAfter)
}

func (a authority) nodeFrom(tb testing.TB, id trust.Identity, pub any, notBefore, notAfter time.Time) []byte {
	tb.Helper()
	uri, err := url.Parse(id.URI())
	require.NoError(tb, err)
	der := a.sign(tb, &x509.Certificate{
		URIs: []*url.URL{uri}, NotBefore: notBefore, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, pub)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// fakeAPI speaks the node API's wire contract. Hooks replace its answers.
type fakeAPI struct {
	t      testing.TB
	srv    *httptest.Server
	server authority // of its own certificate
	nodes  authority
	signer ed25519.PrivateKey
	staged ed25519.PrivateKey
	issuer // of grants and verifier sets

	book *book // keeps identities when set
	// retryAfter goes with every refusal.
	retryAfter string
	id         trust.Identity
	answerID   *trust.Identity // of the certificate, when not id
	offers     chan wire.TaskOffer
	onEnroll   func(n int, r wire.EnrollRequest) error // error: the answer
	onWait     func(n int) error
	onResult   func(n int, taskID string, r task.Result) error
	onBeat     func() error
	onEarly    func() bool // answer the poll at once
	progress   func(taskID string, p task.Progress) (wire.ProgressResponse, error)
	lose       func(path string, n int) bool // commit, then lose the answer
	news       chan news
	onTrust    func() (trust.NodeTrust, error)

	mu         sync.Mutex
	cond       *sync.Cond
	requests   []string
	counts     map[string]int
	spkis      []string
	results    []postedResult
	signers    []string // serials of who signed a result, in their order
	heartbeats []wire.HeartbeatRequest
	haves      []string // HeldTasks of each poll, separated by commas
	numbers    []int64  // of the polls
	open       int      // polls being answered
}

// news is the answer of a poll that names tasks to ask about.
type news []string

type postedResult struct {
	taskID string
	task.Result
}

func newFakeAPI(tb testing.TB) *fakeAPI {
	tb.Helper()
	f := newQuietAPI(tb)
	f.start(f.server.server(tb))
	tb.Cleanup(func() { f.srv.CloseClientConnections(); f.srv.Close() })
	return f
}

// newQuietAPI is a fakeAPI that does not listen.
func newQuietAPI(tb testing.TB) *fakeAPI {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(tb, err)
	_, staged, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(tb, err)
	f := &fakeAPI{
		t: tb, server: newAuthority(tb, "server ca"), nodes: newAuthority(tb, "node ca"), signer: key, staged: staged,
		id:     trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1},
		issuer: newIssuer(tb),
		offers: make(chan wire.TaskOffer, 16), news: make(chan news, 16), counts: map[string]int{},
	}
	f.cond = sync.NewCond(&f.mu)
	return f
}

func (f *fakeAPI) start(cert tls.Certificate) {
	f.srv = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	f.srv.TLS = f.tls(cert)
	f.srv.StartTLS()
}

func (f *fakeAPI) tls(cert tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(f.nodes.cert)
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS12}
}

func (f *fakeAPI) url() string {
	if f.srv == nil {
		return "https://localhost"
	}
	return strings.Replace(f.srv.URL, "127.0.0.1", "localhost", 1)
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	prefix := "/internal/v1/nodes/" + f.id.NodeID
	path, ok := strings.CutPrefix(r.URL.Path, prefix)
	if !ok {
		http.NotFound(w, r)
		return
	}
	parts := strings.Split(path, "/")
	what := parts[len(parts)-1]
	f.mu.Lock()
	f.requests = append(f.requests, r.Method+" "+path)
	f.counts[what]++
	n := f.counts[what]
	f.cond.Broadcast()
	f.mu.Unlock()
	if f.book != nil {
		w.Header().Set("Date", f.book.now().UTC().Format(http.TimeFormat))
	}
	answer, err := f.handle(r, what, parts, n)
	if name := f.newest(); what == "wait" && name != "" {
		w.Header().Set(wire.HeaderVerifierSet, name)
	}
	if f.lose != nil && f.lose(what, n) {
		panic(http.ErrAbortHandler)
	}
	if n, ok := answer.(news); ok {
		w.Header().Set(wire.HeaderCanceledTasks, strings.Join(n, ","))
		answer = nil
	}
	switch {
	case err != nil:
		e := schema.AsError(err)
		if f.retryAfter != "" {
			w.Header().Set("Retry-After", f.retryAfter)
		}
		w.WriteHeader(e.Kind.Info().HTTP)
		body, _ := json.Marshal(e.Body("c"))
		w.Write(body)
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		body, _ := json.Marshal(answer)
		w.Write(body)
	}
}

func (f *fakeAPI) handle(r *http.Request, what string, parts []string, n int) (any, error) {
	if f.book == nil && what != "enroll" && (len(r.TLS.PeerCertificates) == 0) {
		return nil, schema.NewError(schema.KindInvalidNodeIdentity, "no certificate").WithReason(schema.ReasonNoCertificate)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if f.book != nil {
		if answer, ok, err := f.book.serve(r, what, body); ok || err != nil {
			return answer, err
		}
	}
	switch what {
	case "enroll":
		return f.enroll(n, body)
	case "wait":
		return f.wait(r, body, n)
	case "trust":
		if f.onTrust != nil {
			return f.onTrust()
		}
		return trustOf(f.server.pem, f.nodes.pem), nil
	case "verifier-sets":
		return f.setsAfter(r)
	case "result":
		id, leaf := parts[len(parts)-2], r.TLS.PeerCertificates[0]
		if !resultSignedBy(leaf, id, body, r.Header.Get(wire.HeaderResultSignature)) {
			return nil, identityError(schema.ReasonResultSignature)
		}
		var res task.Result
		if err := schema.DecodeStrict(body, wire.MaxResultBytes, &res); err != nil {
			return nil, err
		}
		f.note(func() { f.signers = append(f.signers, trust.CertFactsOf(leaf).Serial) })
		if f.onResult != nil {
			if err := f.onResult(n, id, res); err != nil {
				return nil, err
			}
		}
		f.note(func() { f.results = append(f.results, postedResult{id, res}) })
		return struct{}{}, nil
	case "progress":
		var p task.Progress
		if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &p); err != nil {
			return nil, err
		}
		if f.progress == nil {
			return wire.ProgressResponse{}, nil
		}
		return f.progress(parts[len(parts)-2], p)
	case "heartbeat":
		var h wire.HeartbeatRequest
		if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &h); err != nil {
			return nil, err
		}
		f.note(func() { f.heartbeats = append(f.heartbeats, h) })
		if f.onBeat != nil {
			return nil, f.onBeat()
		}
		return nil, nil
	}
	return nil, schema.NewError(schema.KindNotFound, "no such path")
}

// resultSignedBy reports whether the certificate's key signed the task's result.
func resultSignedBy(leaf *x509.Certificate, taskID string, body []byte, signature string) bool {
	raw, err := base64.RawURLEncoding.DecodeString(signature)
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	sum := sha256.Sum256(dsse.PAE(trust.ResultPayloadType(taskID), body))
	return err == nil && ok && ecdsa.VerifyASN1(key, sum[:], raw)
}

func trustOf(servers, nodes []byte) trust.NodeTrust {
	return trust.NodeTrust{CABundlePEM: string(servers), CABundleFingerprint: trust.Fingerprint(string(servers)),
		NodeCertCABundlePEM: string(nodes), NodeCertCABundleFingerprint: trust.Fingerprint(string(nodes))}
}

func (f *fakeAPI) enroll(n int, body []byte) (any, error) {
	var r wire.EnrollRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	if f.onEnroll != nil {
		if err := f.onEnroll(n, r); err != nil {
			return nil, err
		}
	}
	block, _ := pem.Decode([]byte(r.CSR))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil || len(csr.URIs)+len(csr.DNSNames)+len(csr.Extensions) > 0 || csr.Subject.String() != "" {
		return nil, schema.NewError(schema.KindInvalidRequest, "bad csr")
	}
	f.note(func() { f.spkis = append(f.spkis, string(csr.RawSubjectPublicKeyInfo)) })
	id := f.id
	if f.answerID != nil {
		id = *f.answerID
	}
	return wire.EnrollResponse{
		NodeID: f.id.NodeID, Incarnation: f.id.Incarnation, CAChain: string(f.nodes.pem),
		Certificate: string(f.nodes.node(f.t, id, csr.PublicKey, time.Time{})),
	}, nil
}

func (f *fakeAPI) wait(r *http.Request, body []byte, n int) (any, error) {
	var poll wire.PollRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &poll); err != nil {
		return nil, err
	}
	if err := poll.Validate(); err != nil {
		return nil, err
	}
	f.note(func() {
		f.haves, f.numbers, f.open = append(f.haves, strings.Join(poll.HeldTasks, ",")), append(f.numbers, poll.PollSeq), f.open+1
	})
	defer f.note(func() { f.open-- })
	if f.onWait != nil {
		if err := f.onWait(n); err != nil {
			return nil, err
		}
	}
	if f.onEarly != nil && f.onEarly() {
		return nil, nil
	}
	select {
	case o := <-f.offers:
		return f.granted(o, poll.Nonce), nil
	case n := <-f.news:
		return n, nil
	case <-r.Context().Done():
		return nil, nil
	case <-time.After(poll.Wait()):
		return nil, nil
	}
}

func (f *fakeAPI) note(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.cond.Broadcast()
}

// until waits for a condition over the fields that mu guards.
func (f *fakeAPI) until(what string, ok func() bool) {
	f.t.Helper()
	timer := time.AfterFunc(20*time.Second, func() { f.note(func() {}) })
	defer timer.Stop()
	end := time.Now().Add(20 * time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	for !ok() {
		if time.Now().After(end) {
			f.t.Fatalf("never happened: %s", what)
		}
		f.cond.Wait()
	}
}

// result waits for the result of a task.
func (f *fakeAPI) result(taskID string) (r task.Result) {
	f.t.Helper()
	f.until("result of "+taskID, func() bool {
		for _, p := range f.results {
			if p.taskID == taskID {
				r = p.Result
				return true
			}
		}
		return false
	})
	return r
}

func (f *fakeAPI) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[what]
}

// deserted waits until no poll of a stopped agent is left that could take an
// offer with it.
func (f *fakeAPI) deserted() { f.until("the end of all polls", func() bool { return f.open == 0 }) }

// seen is every request so far.
func (f *fakeAPI) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// keys is the key of every enrolment so far.
func (f *fakeAPI) keys() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.spkis)
}

func (f *fakeAPI) verifiers() trust.VerifierSet {
	active, _ := f.signer.Public().(ed25519.PublicKey)
	staged, _ := f.staged.Public().(ed25519.PublicKey)
	return trust.VerifierSet{
		{State: trust.KeyActive, KeyID: "k1", Public: active},
		{State: trust.KeyStaged, KeyID: "k2", Public: staged},
	}
}

// payload is a valid task of the type.
func (f *fakeAPI) payload(typ task.Type, seq int64, params any) task.Payload {
	row, _ := typ.Info()
	p := task.Payload{
		V: 1, Env: f.id.Env, TaskID: schema.NewID(), NodeID: f.id.NodeID, Incarnation: f.id.Incarnation,
		Type: typ, Effect: row.Effect, Seq: seq, IssuedAt: time.Now().UTC(), NotBefore: time.Now().UTC(),
		ExpiresAt: time.Now().UTC().Add(time.Hour), MaxRuntime: 60, TypeVersion: 1, OperationID: schema.NewID(),
		WorkflowID: lifecycle.NodeWorkflowID(f.id.NodeID), CorrelationID: schema.NewID(),
	}
	if params != nil {
		data, err := json.Marshal(params)
		require.NoError(f.t, err)
		p.Params = data
	}
	return p
}

// body is the signed body of a task; the params get their digest where it has
// none.
func (f *fakeAPI) body(p task.Payload) []byte {
	f.t.Helper()
	if p.ParamsSHA256 == "" {
		params, err := json.Marshal(p.Params) // as they will stand in the body
		require.NoError(f.t, err)
		p.ParamsSHA256 = digestOf(params)
	}
	body, err := json.Marshal(p)
	require.NoError(f.t, err)
	return body
}

func (f *fakeAPI) envelope(p task.Payload) json.RawMessage {
	f.t.Helper()
	return signBytes(f.t, f.signer, task.PayloadType, f.body(p))
}

func (f *fakeAPI) offerOf(p task.Payload, epoch int64) wire.TaskOffer {
	return wire.TaskOffer{
		TaskID: p.TaskID, Envelope: f.envelope(p), ServerTime: time.Now().UTC(),
		Lease: task.Lease{Epoch: epoch, ExpiresAt: time.Now().Add(time.Minute)},
	}
}

// config is a node's configuration in a folder of its own.
func (f *fakeAPI) config() Config {
	f.t.Helper()
	dir := f.t.TempDir()
	token, _, _ := trust.NewToken()
	c := configOf(map[string]string{
		"GPUAAS_NODE_ID": f.id.NodeID, "GPUAAS_API_URL": f.url(), "GPUAAS_ENROLLMENT_TOKEN": token,
		"GPUAAS_TASK_SIGNING_PUBKEYS": f.trust().String(), "GPUAAS_ENV": f.id.Env,
		"GPUAAS_CA_BUNDLE_PATH":           filepath.Join(dir, "ca.crt"),
		"GPUAAS_NODE_CERT_CA_BUNDLE_PATH": filepath.Join(dir, "node-ca.crt"),
		"GPUAAS_CERT_PATH":                filepath.Join(dir, "cert.pem"), "GPUAAS_KEY_PATH": filepath.Join(dir, "key.pem"),
		"GPUAAS_STATE_DIR": filepath.Join(dir, "state"), "GPUAAS_WORKLOAD_DRIVER": DriverProcess,
	}, "")
	require.NoError(f.t, os.WriteFile(c.CABundlePath, f.server.pem, privateFile))
	require.NoError(f.t, os.WriteFile(c.NodeCABundlePath, f.nodes.pem, privateFile))
	require.NoError(f.t, c.Validate())
	killLeftovers(f.t, c)
	return c
}

// install gives the node an identity as if it had enrolled.
func (f *fakeAPI) install(c Config, id trust.Identity, notAfter time.Time) {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(f.t, err)
	require.NoError(f.t, os.WriteFile(c.CertPath, f.nodes.node(f.t, id, &key.PublicKey, notAfter), privateFile))
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	require.NoError(f.t, os.WriteFile(c.KeyPath, keyPEM, privateFile))
}
