package agent

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// book is a server's record of one node's identity: two slots, promotion by
// first use, claims bound to keys, clones locked. It says what the agent may
// count on, independently of the real store.
type book struct {
	f   *fakeAPI
	now func() time.Time
	ttl time.Duration

	mu          sync.Mutex
	live        []authority // node CA generations; the last one issues
	incarnation int64
	sequence    int64
	current     *slot
	pending     *slot
	retired     map[string]time.Time // serial → when it was replaced
	void        map[string]bool      // serials replaced before their use
	key         ed25519.PublicKey
	tokens      map[string]*enrolToken
	claims      map[string]string // recovery token → key, until a promotion
	isLocked    bool
	isRemoved   bool
	blind       bool // the API does not check issuers in TLS
	refuse      func(path string) error
	issued      int
	via         []trust.IssueMethod
	promoted    []string
}

type slot struct {
	facts trust.CertFacts
	seq   int64
	token string
	// paid is the enrolment token that this slot's first use consumes.
	paid *enrolToken
}

type enrolToken struct {
	reissue  bool
	claimed  string
	consumed bool
	inc      int64
}

func newBook(f *fakeAPI, now func() time.Time) *book {
	b := &book{
		f: f, now: now, ttl: trust.CertTTL, live: []authority{f.nodes}, retired: map[string]time.Time{}, void: map[string]bool{},
		tokens: map[string]*enrolToken{}, claims: map[string]string{}, incarnation: 1,
	}
	f.book = b
	return b
}

// token mints an enrolment token; a later one is a reissue.
func (b *book) token() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text, _, _ := trust.NewToken()
	for _, t := range b.tokens {
		t.consumed = true
	}
	b.tokens[text] = &enrolToken{reissue: len(b.tokens) > 0}
	return text
}

// accepts reports whether the server would take a certificate now, without
// counting as a use.
func (b *book) accepts(serial string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range []*slot{b.current, b.pending} {
		if s != nil && s.facts.Serial == serial {
			return !b.isLocked && !b.isRemoved && b.now().Before(s.facts.NotAfter) && b.trusts(s.facts.Issuer)
		}
	}
	return false
}

func (b *book) trusts(issuer string) bool {
	return slices.ContainsFunc(b.live, func(a authority) bool { return a.cert.Subject.String() == issuer })
}

// serve answers one request of the node API's identity part; ok is false for
// what it does not know.
func (b *book) serve(r *http.Request, what string, body []byte) (answer any, ok bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		if err := b.refuse(what); err != nil {
			return nil, true, err
		}
	}
	switch what {
	case "enroll":
		answer, err = b.enroll(body)
		return answer, true, err
	case "recover":
		answer, err = b.recover(body)
		return answer, true, err
	}
	if len(r.TLS.PeerCertificates) == 0 {
		return nil, true, identityError(schema.ReasonNoCertificate)
	}
	caller := trust.CertFactsOf(r.TLS.PeerCertificates[0])
	if err := b.authenticate(caller); err != nil {
		return nil, true, err
	}
	if what == "renew" {
		answer, err = b.renew(body)
		return answer, true, err
	}
	return nil, false, nil
}

func (b *book) authenticate(c trust.CertFacts) error {
	switch {
	case b.isRemoved:
		return identityError(schema.ReasonNodeRemoved)
	case b.isLocked:
		return identityError(schema.ReasonNodeLocked)
	case !b.trusts(c.Issuer):
		if b.blind {
			return identityError(schema.ReasonUnknownIssuer)
		}
		return identityError(schema.ReasonIssuerRetired)
	case b.now().After(c.NotAfter):
		return identityError(schema.ReasonExpired)
	case b.current != nil && c.Serial == b.current.facts.Serial:
		return nil
	case b.pending != nil && c.Serial == b.pending.facts.Serial:
		b.promote()
		return nil
	case b.void[c.Serial]:
		return identityError(schema.ReasonSerialSuperseded)
	}
	if at, ok := b.retired[c.Serial]; ok {
		if b.now().Sub(at) > trust.InFlight {
			b.isLocked = true
			return identityError(schema.ReasonNodeLocked)
		}
		return identityError(schema.ReasonSerialSuperseded)
	}
	return identityError(schema.ReasonIdentityMismatch)
}

func (b *book) promote() {
	if b.current != nil {
		b.retired[b.current.facts.Serial] = b.now()
	}
	if b.pending.paid != nil {
		b.pending.paid.consumed = true
	}
	b.current, b.pending = b.pending, nil
	clear(b.claims)
	b.promoted = append(b.promoted, b.current.facts.Serial)
}

func (b *book) enroll(body []byte) (any, error) {
	var r wire.EnrollRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := readCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	key, err := trust.ParseRecoveryKey(r.RecoveryKey)
	if err != nil {
		return nil, err
	}
	if !trust.CheckStatement(key, trust.EnrollStatement(b.f.id.NodeID, r.Token, r.CSR, key), r.Signature) {
		return nil, schema.Errorf(schema.KindUnauthenticated, "wrong signature")
	}
	t, ok := b.tokens[r.Token]
	spki := schema.SHA256Hex(csr.RawSubjectPublicKeyInfo)
	switch {
	case b.isRemoved:
		return nil, identityError(schema.ReasonNodeRemoved)
	case !ok:
		return nil, schema.Errorf(schema.KindUnauthenticated, "unknown token")
	case t.consumed || t.claimed != "" && t.claimed != spki:
		return nil, schema.Errorf(schema.KindTokenConsumed, "spent token")
	}
	if t.claimed == "" {
		t.claimed = spki
		if t.reissue {
			b.incarnation++
			b.current, b.pending, b.isLocked, b.sequence = nil, nil, false, 0
		}
		t.inc = b.incarnation
	}
	b.key = key
	return b.issue(csr, trust.IssuedByEnroll, t)
}

func (b *book) renew(body []byte) (any, error) {
	var r wire.RenewRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := readCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	if err := b.clone(r.Sequence, csr); err != nil {
		return nil, err
	}
	return b.issue(csr, trust.IssuedByRenew, nil)
}

// clone locks the node when a key asks with a sequence that another key has
// passed already.
func (b *book) clone(sequence int64, csr *x509.CertificateRequest) error {
	if sequence < b.current.seq && schema.SHA256Hex(csr.RawSubjectPublicKeyInfo) != b.current.facts.SPKI {
		b.isLocked = true
		return identityError(schema.ReasonNodeLocked)
	}
	return nil
}

func (b *book) recover(body []byte) (any, error) {
	var r wire.RecoverRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := readCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	switch {
	case b.isRemoved:
		return nil, identityError(schema.ReasonNodeRemoved)
	case b.isLocked:
		return nil, identityError(schema.ReasonNodeLocked)
	case !trust.CheckStatement(b.key, trust.RecoverStatement(b.f.id.NodeID, r.Incarnation, r.Sequence, r.Token, r.CSR), r.Signature):
		return nil, schema.Errorf(schema.KindUnauthenticated, "wrong signature")
	case r.Incarnation != b.incarnation:
		return nil, schema.Errorf(schema.KindUnauthenticated, "another incarnation")
	}
	spki := schema.SHA256Hex(csr.RawSubjectPublicKeyInfo)
	live := b.current != nil && b.current.token == r.Token || b.pending != nil && b.pending.token == r.Token
	switch by := b.claims[r.Token]; {
	case by == "" && !live:
		return nil, schema.Errorf(schema.KindUnauthenticated, "no such recovery token")
	case by != "" && by != spki:
		return nil, schema.Errorf(schema.KindTokenConsumed, "claimed by another key")
	}
	if b.current != nil {
		if err := b.clone(r.Sequence, csr); err != nil {
			return nil, err
		}
	}
	b.claims[r.Token] = spki
	return b.issue(csr, trust.IssuedByRecover, nil)
}

// issue puts a new certificate into the pending slot.
func (b *book) issue(csr *x509.CertificateRequest, via trust.IssueMethod, paid *enrolToken) (any, error) {
	ca := b.live[len(b.live)-1]
	id := b.f.id
	id.Incarnation = b.incarnation
	now := b.now()
	text := ca.nodeFrom(b.f.t, id, csr.PublicKey, now.Add(-5*time.Minute), now.Add(b.ttl))
	block, _ := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	b.sequence++
	b.issued++
	b.via = append(b.via, via)
	token, _, _ := trust.NewToken()
	if b.pending != nil {
		b.void[b.pending.facts.Serial] = true
	}
	b.pending = &slot{facts: trust.CertFactsOf(leaf), seq: b.sequence, token: token, paid: paid}
	return wire.EnrollResponse{
		NodeID: id.NodeID, Incarnation: id.Incarnation, Certificate: string(text), CAChain: string(ca.pem),
		NotAfter: leaf.NotAfter, Sequence: b.sequence, RecoveryToken: token,
		RecoveryExpiresAt: now.Add(trust.RecoveryTokenTTL), ServerTime: now,
	}, nil
}

func readCSR(text string) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, schema.Errorf(schema.KindInvalidRequest, "no csr")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil || !bytes.Equal(csr.RawSubject, []byte{0x30, 0}) {
		return nil, schema.Errorf(schema.KindInvalidRequest, "bad csr")
	}
	return csr, nil
}
