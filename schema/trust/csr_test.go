package trust

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

func TestCheckCSRAccepts(t *testing.T) {
	t.Parallel()
	require.NoError(t, CheckCSR(csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t))))
}

func TestCheckCSRRejects(t *testing.T) {
	t.Parallel()
	spiffe, err := url.Parse(Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}.URI())
	require.NoError(t, err)
	caTrue, err := asn1.Marshal(struct{ CA bool }{true})
	require.NoError(t, err)
	extension := func(id asn1.ObjectIdentifier, value []byte) x509.CertificateRequest {
		return x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: id, Value: value}}}
	}
	for name, c := range map[string]struct {
		template x509.CertificateRequest
		reason   string
	}{
		"common name":       {x509.CertificateRequest{Subject: pkix.Name{CommonName: "node"}}, "csr_subject"},
		"two common names":  {x509.CertificateRequest{RawSubject: csrtest.TwoCommonNames(t)}, "csr_subject"},
		"organization":      {x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:masters"}}}, "csr_subject"},
		"DNS name":          {x509.CertificateRequest{DNSNames: []string{"node"}}, "csr_san"},
		"address":           {x509.CertificateRequest{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "csr_san"},
		"e-mail":            {x509.CertificateRequest{EmailAddresses: []string{"a@b"}}, "csr_san"},
		"URI":               {x509.CertificateRequest{URIs: []*url.URL{spiffe}}, "csr_san"},
		"empty SAN":         {extension(asn1.ObjectIdentifier{2, 5, 29, 17}, []byte{0x30, 0}), "csr_san"},
		"CA flag":           {extension(asn1.ObjectIdentifier{2, 5, 29, 19}, caTrue), "csr_ca"},
		"key usage":         {extension(asn1.ObjectIdentifier{2, 5, 29, 15}, []byte{3, 2, 1, 6}), "csr_extension"},
		"ext key usage":     {extension(asn1.ObjectIdentifier{2, 5, 29, 37}, []byte{0x30, 0}), "csr_extension"},
		"unknown extension": {extension(asn1.ObjectIdentifier{1, 2, 3, 4}, []byte{5, 0}), "csr_extension"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireRejected(t, csrtest.New(t, c.template, csrtest.Key(t)), c.reason)
		})
	}
	t.Run("challenge password", func(t *testing.T) {
		t.Parallel()
		requireRejected(t, withAttribute(t, csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t))), "csr_attribute")
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		requireRejected(t, nil, "csr_malformed")
	})
}

func TestCheckCSRRejectsKeys(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	require.NoError(t, err)
	for name, csr := range map[string]*x509.CertificateRequest{
		"RSA":     csrtest.New(t, x509.CertificateRequest{}, rsaKey),
		"Ed25519": csrtest.New(t, x509.CertificateRequest{}, edKey),
		"P-384":   csrtest.New(t, x509.CertificateRequest{}, p384),
		"P-224":   csrtest.New(t, x509.CertificateRequest{}, p224),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireRejected(t, csr, "csr_key")
		})
	}
}

func TestCheckCSRRejectsSignatures(t *testing.T) {
	t.Parallel()
	mine, other := csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)), csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t))
	mine.Signature = other.Signature
	requireRejected(t, mine, "csr_signature")
}

func TestParseCSRRejectsText(t *testing.T) {
	t.Parallel()
	good := csrPEM(csrtest.New(t, x509.CertificateRequest{}, csrtest.Key(t)))
	parsed, err := ParseCSR(good)
	require.NoError(t, err)
	require.NotNil(t, parsed)
	for name, c := range map[string]struct{ text, reason string }{
		"nothing":      {"", "csr_pem"},
		"two blocks":   {good + good, "csr_pem"},
		"leading text": {"hello\n" + good, "csr_pem"},
		"other block":  {strings.ReplaceAll(good, "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"), "csr_pem"},
		"PEM headers":  {strings.Replace(good, "-----\n", "-----\nA: b\n\n", 1), "csr_pem"},
		"not DER":      {string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: []byte("x")})), "csr_malformed"},
		"large":        {good + strings.Repeat("\n", 5000), "csr_size"},
		"extension":    {csrPEM(csrtest.New(t, x509.CertificateRequest{DNSNames: []string{"node"}}, csrtest.Key(t))), "csr_san"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			csr, err := ParseCSR(c.text)
			require.Nil(t, csr)
			requireReason(t, err, c.reason)
		})
	}
}

func csrPEM(csr *x509.CertificateRequest) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: csr.Raw}))
}

func requireRejected(t *testing.T, csr *x509.CertificateRequest, reason string) {
	t.Helper()
	requireReason(t, CheckCSR(csr), reason)
}

func requireReason(t *testing.T, err error, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%v", err)
	require.Equal(t, reason, schema.AsError(err).Reason, "%v", err)
}

// withAttribute returns a well-signed request with an attribute that crypto/x509
// hides: a challenge password.
func withAttribute(t *testing.T, csr *x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	key := csrtest.Key(t)
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	marshal := func(v any) []byte {
		der, err := asn1.Marshal(v)
		require.NoError(t, err)
		return der
	}
	wrap := func(class, tag int, content ...[]byte) []byte {
		var all []byte
		for _, c := range content {
			all = append(all, c...)
		}
		return marshal(asn1.RawValue{Class: class, Tag: tag, IsCompound: true, Bytes: all})
	}
	password := wrap(asn1.ClassUniversal, asn1.TagSet, marshal("letmein"))
	attribute := wrap(asn1.ClassUniversal, asn1.TagSequence, marshal(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 7}), password)
	tbs := wrap(asn1.ClassUniversal, asn1.TagSequence, marshal(0), csr.RawSubject, spki,
		wrap(asn1.ClassContextSpecific, 0, attribute))
	digest := sha256.Sum256(tbs)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	require.NoError(t, err)
	algorithm := wrap(asn1.ClassUniversal, asn1.TagSequence, marshal(asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}))
	der := wrap(asn1.ClassUniversal, asn1.TagSequence, tbs, algorithm,
		marshal(asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}))
	out, err := x509.ParseCertificateRequest(der)
	require.NoError(t, err)
	require.NoError(t, out.CheckSignature())
	return out
}
