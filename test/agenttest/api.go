package agenttest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// API speaks the node API's wire contract. Hooks replace its answers.
type API struct {
	Record
	Srv    *httptest.Server
	Server Authority // of its own certificate
	Nodes  Authority
	Signer ed25519.PrivateKey
	Staged ed25519.PrivateKey
	issuer // of grants and verifier sets

	book *Book // keeps identities when set
	// RetryAfter goes with every refusal.
	RetryAfter    string
	ID            trust.Identity
	AnswerID      *trust.Identity // of the certificate, when not id
	Offers        chan wire.TaskOffer
	OnEnroll      func(n int, r wire.EnrollRequest) error // error: the answer
	OnWait        func(n int) error
	OnProbe       func() error // of an authenticated probe
	Probed        []string     // serials that a probe presented
	OnResult      func(n int, taskID string, r task.Result) error
	OnEarly       func() bool // answer the poll at once
	Progress      func(taskID string, p task.Progress) (wire.ProgressResponse, error)
	Lose          func(path string, n int) bool // commit, then lose the answer
	Cancellations chan Cancellations
	OnTrust       func() (trust.NodeTrust, error)
	OnPackage     func(w http.ResponseWriter, sum string) // serves the binary of a digest
	Removal       func() json.RawMessage                  // goes with node_removed
	Checkpoint    func() string                           // of the audit trail, in the answer to a poll
	Replaces      func() bool                             // whether the answer to a poll replaces its checkpoint
	Kept          string                                  // the checkpoint in the last poll
	NodeCABundle  string                                  // the digest in the last poll
}

// Cancellations is the answer of a poll that names tasks to ask about.
type Cancellations []string

func New(tb testing.TB) *API {
	tb.Helper()
	f := NewQuiet(tb)
	f.Start(f.Server.Server(tb))
	tb.Cleanup(func() { f.Srv.CloseClientConnections(); f.Srv.Close() })
	return f
}

// NewQuiet returns an API that does not listen.
func NewQuiet(tb testing.TB) *API {
	tb.Helper()
	f := &API{
		Record: Record{T: tb, Counts: map[string]int{}, tries: map[string]int{}},
		Server: NewAuthority(tb, "server ca"), Nodes: NewAuthority(tb, "node ca"), Signer: NewKey(tb), Staged: NewKey(tb),
		ID:     trust.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1},
		issuer: newIssuer(tb),
		Offers: make(chan wire.TaskOffer, 16), Cancellations: make(chan Cancellations, 16),
	}
	f.cond = sync.NewCond(&f.Mu)
	return f
}

func (f *API) Start(cert tls.Certificate) {
	f.Srv = httptest.NewUnstartedServer(http.HandlerFunc(f.Serve))
	f.Srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	f.Srv.TLS = f.TLS(cert)
	f.Srv.StartTLS()
}

func (f *API) TLS(cert tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(f.Nodes.Cert)
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS12}
}

func (f *API) URL() string {
	if f.Srv == nil {
		return "https://localhost"
	}
	return strings.Replace(f.Srv.URL, "127.0.0.1", "localhost", 1)
}

func (f *API) Serve(w http.ResponseWriter, r *http.Request) {
	if sum, ok := strings.CutPrefix(r.URL.Path, "/internal/v1/packages/sha256:"); ok && f.OnPackage != nil {
		f.OnPackage(w, sum)
		return
	}
	prefix := "/internal/v1/nodes/" + f.ID.NodeID
	path, ok := strings.CutPrefix(r.URL.Path, prefix)
	if !ok {
		http.NotFound(w, r)
		return
	}
	parts := strings.Split(path, "/")
	what := parts[len(parts)-1]
	if what == "wait" && r.Method == http.MethodGet {
		what = "probe"
	}
	f.Mu.Lock()
	f.requests = append(f.requests, r.Method+" "+path)
	f.Counts[what]++
	n := f.Counts[what]
	f.cond.Broadcast()
	f.Mu.Unlock()
	if f.book != nil {
		w.Header().Set("Date", f.book.now().UTC().Format(http.TimeFormat))
	}
	answer, err := f.handle(r, what, parts, n)
	if f.Checkpoint != nil && what == "wait" {
		w.Header().Set(wire.HeaderAuditCheckpoint, f.Checkpoint())
	}
	if f.Replaces != nil && what == "wait" && f.Replaces() {
		w.Header().Set(wire.HeaderReplaceCheckpoint, "true")
	}
	if name := f.newest(); what == "wait" && name != "" {
		w.Header().Set(wire.HeaderVerifierSet, name)
	}
	if f.Lose != nil && f.Lose(what, n) {
		panic(http.ErrAbortHandler)
	}
	if n, ok := answer.(Cancellations); ok {
		w.Header().Set(wire.HeaderCanceledTasks, strings.Join(n, ","))
		answer = nil
	}
	switch {
	case err != nil:
		e := schema.AsError(err)
		if f.Removal != nil && e.Reason == schema.ReasonNodeRemoved {
			w.Header().Set(wire.HeaderRemoval, base64.RawURLEncoding.EncodeToString(f.Removal()))
		}
		if f.RetryAfter != "" {
			w.Header().Set("Retry-After", f.RetryAfter)
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

func (f *API) handle(r *http.Request, what string, parts []string, n int) (any, error) {
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
		if f.OnTrust != nil {
			return f.OnTrust()
		}
		return TrustOf(f.Server.PEM, f.Nodes.PEM), nil
	case "verifier-sets":
		return f.setsAfter(r)
	case "result":
		id, leaf := parts[len(parts)-2], r.TLS.PeerCertificates[0]
		f.Note(func() { f.tries[id]++ })
		if !resultSignedBy(leaf, id, body, r.Header.Get(wire.HeaderResultSignature)) {
			return nil, IdentityError(schema.ReasonResultSignature)
		}
		var res task.Result
		if err := schema.DecodeStrict(body, wire.MaxResultBytes, &res); err != nil {
			return nil, err
		}
		f.Note(func() { f.Signers = append(f.Signers, trust.CertFactsOf(leaf).Serial) })
		if f.OnResult != nil {
			if err := f.OnResult(n, id, res); err != nil {
				return nil, err
			}
		}
		f.Note(func() { f.Results = append(f.Results, postedResult{id, res}) })
		return struct{}{}, nil
	case "progress":
		var p task.Progress
		if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &p); err != nil {
			return nil, err
		}
		if f.Progress == nil {
			return wire.ProgressResponse{}, nil
		}
		return f.Progress(parts[len(parts)-2], p)
	case "probe":
		f.Note(func() { f.Probed = append(f.Probed, trust.CertFactsOf(r.TLS.PeerCertificates[0]).Serial) })
		if f.OnProbe != nil {
			return nil, f.OnProbe()
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

func TrustOf(servers, nodes []byte) trust.NodeTrust {
	return trust.NodeTrust{CABundlePEM: string(servers), CABundleFingerprint: trust.Fingerprint(string(servers)),
		NodeCertCABundlePEM: string(nodes), NodeCertCABundleFingerprint: trust.Fingerprint(string(nodes))}
}

func (f *API) enroll(n int, body []byte) (any, error) {
	var r wire.EnrollRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	if f.OnEnroll != nil {
		if err := f.OnEnroll(n, r); err != nil {
			return nil, err
		}
	}
	csr, err := ReadCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	f.Note(func() { f.spkis = append(f.spkis, string(csr.RawSubjectPublicKeyInfo)) })
	id := f.ID
	if f.AnswerID != nil {
		id = *f.AnswerID
	}
	return wire.EnrollResponse{
		NodeID: f.ID.NodeID, Incarnation: f.ID.Incarnation, CAChain: string(f.Nodes.PEM),
		Certificate: string(f.Nodes.Node(f.T, id, csr.PublicKey, time.Time{})),
	}, nil
}

func (f *API) wait(r *http.Request, body []byte, n int) (any, error) {
	var poll wire.PollRequest
	if err := schema.DecodeStrict(body, wire.MaxPollBytes, &poll); err != nil {
		return nil, err
	}
	if err := poll.Validate(); err != nil {
		return nil, err
	}
	var again *wire.TaskOffer
	offers := f.Offers
	f.Note(func() {
		f.Kept, f.NodeCABundle = poll.AuditCheckpoint, poll.NodeCABundle
		if poll.Heartbeat != nil {
			f.Heartbeats = append(f.Heartbeats, *poll.Heartbeat)
			f.faulty = poll.Heartbeat.Fault != ""
		}
		if f.faulty {
			offers = nil
		} else if f.Lose == nil {
			again = f.unreceived(poll.HeldTasks)
		}
		f.Haves, f.Numbers, f.Open = append(f.Haves, strings.Join(poll.HeldTasks, ",")), append(f.Numbers, poll.PollSeq), f.Open+1
	})
	defer f.Note(func() { f.Open-- })
	if f.OnWait != nil {
		if err := f.OnWait(n); err != nil {
			return nil, err
		}
	}
	if f.OnEarly != nil && f.OnEarly() {
		return nil, nil
	}
	if again != nil {
		f.Note(func() { f.sent = sentOffer{TaskOffer: *again, again: true} })
		return f.Granted(*again, poll.Nonce), nil
	}
	select {
	case o := <-offers:
		if r.Context().Err() != nil {
			f.Offers <- o // the agent ended the poll: a later one gets the offer
			return nil, nil
		}
		f.Note(func() { f.sent = sentOffer{TaskOffer: o, tries: f.tries[o.TaskID]} })
		return f.Granted(o, poll.Nonce), nil
	case n := <-f.Cancellations:
		return n, nil
	case <-r.Context().Done():
		return nil, nil
	case <-time.After(poll.Wait()):
		return nil, nil
	}
}

func IdentityError(reason string) error {
	return schema.NewError(schema.KindInvalidNodeIdentity, "not this one").WithReason(reason)
}

// Cut ends all connections, and returns when the agent polls over a new one and no
// older poll is left that could take an offer with it.
func (f *API) Cut() {
	f.T.Helper()
	n := f.Count("wait")
	f.Srv.CloseClientConnections()
	f.Until("a poll over a new connection", func() bool { return f.Counts["wait"] > n && f.Open == 1 })
}
