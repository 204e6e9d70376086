package agenttest

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Book is a server's record of one node's identity: two slots, promotion by
// first use, claims bound to keys, clones locked. It implements the
// contract that the agent relies on, independently of the real store.
type Book struct {
	f   *API
	now func() time.Time
	ttl time.Duration

	Mu          sync.Mutex
	Live        []Authority // node CA generations; the last one issues
	incarnation int64
	sequence    int64
	Current     *Slot
	Pending     *Slot
	Retired     map[string]time.Time // serial → when it was replaced
	Void        map[string]bool      // serials replaced before their use
	key         ed25519.PublicKey
	Proven      []bool // whether an enrollment with another recovery key proved the previous one
	Tokens      map[string]*EnrollToken
	claims      map[string]string // recovery token → key, until a promotion
	IsLocked    bool
	IsRemoved   bool
	Blind       bool // the API does not check issuers in TLS
	Refuse      func(path string) error
	Issued      int
	Via         []trust.IssueMethod
	promoted    []string
}

type Slot struct {
	Facts trust.CertFacts
	Seq   int64
	Token string
	// paid is the enrollment token that this slot's first use consumes.
	paid *EnrollToken
}

type EnrollToken struct {
	reissue  bool
	claimed  string
	consumed bool
	inc      int64
}

func NewBook(f *API, now func() time.Time) *Book {
	b := &Book{
		f: f, now: now, ttl: trust.CertTTL, Live: []Authority{f.Nodes}, Retired: map[string]time.Time{}, Void: map[string]bool{},
		Tokens: map[string]*EnrollToken{}, claims: map[string]string{}, incarnation: 1,
	}
	f.book = b
	return b
}

// Token mints an enrollment token; a later one is a reissue.
func (b *Book) Token() string {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.token()
}

func (b *Book) token() string {
	text, _, _ := trust.NewToken()
	for _, t := range b.Tokens {
		t.consumed = true
	}
	b.Tokens[text] = &EnrollToken{reissue: len(b.Tokens) > 0}
	return text
}

// Accepts reports whether the server would take a certificate now, without
// counting as a use.
func (b *Book) Accepts(serial string) bool {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	for _, s := range []*Slot{b.Current, b.Pending} {
		if s != nil && s.Facts.Serial == serial {
			return !b.IsLocked && !b.IsRemoved && b.now().Before(s.Facts.NotAfter) && b.trusts(s.Facts.Issuer)
		}
	}
	return false
}

func (b *Book) trusts(issuer string) bool {
	return slices.ContainsFunc(b.Live, func(a Authority) bool { return a.Cert.Subject.String() == issuer })
}

// serve answers one request of the node API's identity part; ok is false for
// what it does not know.
func (b *Book) serve(r *http.Request, what string, body []byte) (answer any, ok bool, err error) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.Refuse != nil {
		if err := b.Refuse(what); err != nil {
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
		return nil, true, IdentityError(schema.ReasonNoCertificate)
	}
	caller := trust.CertFactsOf(r.TLS.PeerCertificates[0])
	if err := b.authenticate(caller); err != nil {
		return nil, true, err
	}
	switch what {
	case "renew":
		answer, err = b.renew(body)
		return answer, true, err
	case "identity-token":
		return trust.IdentityToken{Token: b.token(), ExpiresAt: b.now().Add(time.Hour)}, true, nil
	}
	return nil, false, nil
}

func (b *Book) authenticate(c trust.CertFacts) error {
	switch {
	case b.IsRemoved:
		return IdentityError(schema.ReasonNodeRemoved)
	case b.IsLocked:
		return IdentityError(schema.ReasonNodeLocked)
	case !b.trusts(c.Issuer):
		if b.Blind {
			return IdentityError(schema.ReasonUnknownIssuer)
		}
		return IdentityError(schema.ReasonIssuerRetired)
	case b.now().After(c.NotAfter):
		return IdentityError(schema.ReasonExpired)
	case b.Current != nil && c.Serial == b.Current.Facts.Serial:
		return nil
	case b.Pending != nil && c.Serial == b.Pending.Facts.Serial:
		b.promote()
		return nil
	case b.Void[c.Serial]:
		return IdentityError(schema.ReasonSerialSuperseded)
	}
	if at, ok := b.Retired[c.Serial]; ok {
		if b.now().Sub(at) > trust.InFlight {
			b.IsLocked = true
			return IdentityError(schema.ReasonNodeLocked)
		}
		return IdentityError(schema.ReasonSerialSuperseded)
	}
	return IdentityError(schema.ReasonIdentityMismatch)
}

func (b *Book) promote() {
	if b.Current != nil {
		b.Retired[b.Current.Facts.Serial] = b.now()
	}
	if b.Pending.paid != nil {
		b.Pending.paid.consumed = true
	}
	b.Current, b.Pending = b.Pending, nil
	clear(b.claims)
	b.promoted = append(b.promoted, b.Current.Facts.Serial)
}

func (b *Book) enroll(body []byte) (any, error) {
	var r wire.EnrollRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := ReadCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	key, err := trust.ParseRecoveryKey(r.RecoveryKey)
	if err != nil {
		return nil, err
	}
	if !trust.CheckStatement(key, trust.EnrollStatement(b.f.ID.NodeID, r.Token, r.CSR, key), r.Signature) {
		return nil, schema.NewError(schema.KindUnauthenticated, "wrong signature")
	}
	t, ok := b.Tokens[r.Token]
	spki := schema.SHA256Hex(csr.RawSubjectPublicKeyInfo)
	switch {
	case b.IsRemoved:
		return nil, IdentityError(schema.ReasonNodeRemoved)
	case !ok:
		return nil, schema.NewError(schema.KindUnauthenticated, "unknown token")
	case t.consumed || t.claimed != "" && t.claimed != spki:
		return nil, schema.NewError(schema.KindTokenConsumed, "spent token")
	}
	if t.claimed == "" {
		t.claimed = spki
		if t.reissue {
			b.incarnation++
			b.Current, b.Pending, b.IsLocked, b.sequence = nil, nil, false, 0
		}
		t.inc = b.incarnation
	}
	if b.key != nil && !b.key.Equal(key) {
		statement := trust.EnrollStatement(b.f.ID.NodeID, r.Token, r.CSR, key)
		b.Proven = append(b.Proven, r.PreviousKey == base64.StdEncoding.EncodeToString(b.key) && trust.CheckStatement(b.key, statement, r.PreviousSignature))
	}
	b.key = key
	return b.issue(csr, trust.IssuedByEnroll, t)
}

func (b *Book) renew(body []byte) (any, error) {
	var r wire.RenewRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := ReadCSR(r.CSR)
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
func (b *Book) clone(sequence int64, csr *x509.CertificateRequest) error {
	if sequence < b.Current.Seq && schema.SHA256Hex(csr.RawSubjectPublicKeyInfo) != b.Current.Facts.SPKI {
		b.IsLocked = true
		return IdentityError(schema.ReasonNodeLocked)
	}
	return nil
}

func (b *Book) recover(body []byte) (any, error) {
	var r wire.RecoverRequest
	if err := schema.DecodeStrict(body, wire.MaxBodyBytes, &r); err != nil {
		return nil, err
	}
	csr, err := ReadCSR(r.CSR)
	if err != nil {
		return nil, err
	}
	switch {
	case b.IsRemoved:
		return nil, IdentityError(schema.ReasonNodeRemoved)
	case b.IsLocked:
		return nil, IdentityError(schema.ReasonNodeLocked)
	case !trust.CheckStatement(b.key, trust.RecoverStatement(b.f.ID.NodeID, r.Incarnation, r.Sequence, r.Token, r.CSR), r.Signature):
		return nil, schema.NewError(schema.KindUnauthenticated, "wrong signature")
	case r.Incarnation != b.incarnation:
		return nil, schema.NewError(schema.KindUnauthenticated, "another incarnation")
	}
	spki := schema.SHA256Hex(csr.RawSubjectPublicKeyInfo)
	live := b.Current != nil && b.Current.Token == r.Token || b.Pending != nil && b.Pending.Token == r.Token
	switch by := b.claims[r.Token]; {
	case by == "" && !live:
		return nil, schema.NewError(schema.KindUnauthenticated, "no such recovery token")
	case by != "" && by != spki:
		return nil, schema.NewError(schema.KindTokenConsumed, "claimed by another key")
	}
	if b.Current != nil {
		if err := b.clone(r.Sequence, csr); err != nil {
			return nil, err
		}
	}
	b.claims[r.Token] = spki
	return b.issue(csr, trust.IssuedByRecover, nil)
}

// issue puts a new certificate into the pending slot.
func (b *Book) issue(csr *x509.CertificateRequest, via trust.IssueMethod, paid *EnrollToken) (any, error) {
	ca := b.Live[len(b.Live)-1]
	id := b.f.ID
	id.Incarnation = b.incarnation
	now := b.now()
	text := ca.NodeFrom(b.f.T, id, csr.PublicKey, now.Add(-5*time.Minute), now.Add(b.ttl))
	block, _ := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	b.sequence++
	b.Issued++
	b.Via = append(b.Via, via)
	token, _, _ := trust.NewToken()
	if b.Pending != nil {
		b.Void[b.Pending.Facts.Serial] = true
	}
	b.Pending = &Slot{Facts: trust.CertFactsOf(leaf), Seq: b.sequence, Token: token, paid: paid}
	return wire.EnrollResponse{
		NodeID: id.NodeID, Incarnation: id.Incarnation, Certificate: string(text), CAChain: string(ca.PEM),
		NotAfter: leaf.NotAfter, Sequence: b.sequence, RecoveryToken: token,
		RecoveryExpiresAt: now.Add(trust.RecoveryTokenTTL), ServerTime: now,
	}, nil
}
