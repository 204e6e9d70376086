package vault

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
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func emptyRequest() x509.CertificateRequest { return x509.CertificateRequest{} }

func TestCheckCSRAccepts(t *testing.T) {
	t.Parallel()
	require.NoError(t, checkCSR(newCSR(t, emptyRequest(), newKey(t))))
}

func TestCheckCSRRefuses(t *testing.T) {
	t.Parallel()
	spiffe, err := url.Parse(nodeIdentity().URI())
	require.NoError(t, err)
	caTrue, err := asn1.Marshal(struct{ CA bool }{true})
	require.NoError(t, err)
	extension := func(id asn1.ObjectIdentifier, value []byte) x509.CertificateRequest {
		return x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: id, Value: value}}}
	}
	for name, template := range map[string]x509.CertificateRequest{
		"common name":       {Subject: pkix.Name{CommonName: "node"}},
		"two common names":  {RawSubject: twoCommonNames(t)},
		"organisation":      {Subject: pkix.Name{Organization: []string{"system:masters"}}},
		"DNS name":          {DNSNames: []string{"node"}},
		"address":           {IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}},
		"e-mail":            {EmailAddresses: []string{"a@b"}},
		"URI":               {URIs: []*url.URL{spiffe}},
		"CA flag":           extension(asn1.ObjectIdentifier{2, 5, 29, 19}, caTrue),
		"key usage":         extension(asn1.ObjectIdentifier{2, 5, 29, 15}, []byte{3, 2, 1, 6}),
		"ext key usage":     extension(asn1.ObjectIdentifier{2, 5, 29, 37}, []byte{0x30, 0}),
		"empty SAN":         extension(asn1.ObjectIdentifier{2, 5, 29, 17}, []byte{0x30, 0}),
		"unknown extension": extension(asn1.ObjectIdentifier{1, 2, 3, 4}, []byte{5, 0}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireKind(t, checkCSR(newCSR(t, template, newKey(t))), schema.KindInvalidRequest, ReasonCSRExtras)
		})
	}
	t.Run("challenge password", func(t *testing.T) {
		t.Parallel()
		csr := newCSR(t, emptyRequest(), newKey(t))
		requireKind(t, checkCSR(withAttribute(t, csr)), schema.KindInvalidRequest, ReasonCSRExtras)
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		requireKind(t, checkCSR(nil), schema.KindInvalidRequest, ReasonCSRExtras)
	})
}

func TestCheckCSRRefusesKeys(t *testing.T) {
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
		"RSA":     newCSR(t, emptyRequest(), rsaKey),
		"Ed25519": newCSR(t, emptyRequest(), edKey),
		"P-384":   newCSR(t, emptyRequest(), p384),
		"P-224":   newCSR(t, emptyRequest(), p224),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireKind(t, checkCSR(csr), schema.KindInvalidRequest, ReasonCSRKey)
		})
	}
}

func TestCheckCSRRefusesSignatures(t *testing.T) {
	t.Parallel()
	mine, other := newCSR(t, emptyRequest(), newKey(t)), newCSR(t, emptyRequest(), newKey(t))
	mine.Signature = other.Signature
	requireKind(t, checkCSR(mine), schema.KindInvalidRequest, ReasonCSRSignature)
}

// twoCommonNames is a subject that parsers read differently.
func twoCommonNames(t *testing.T) []byte {
	t.Helper()
	cn := asn1.ObjectIdentifier{2, 5, 4, 3}
	raw, err := asn1.Marshal(pkix.RDNSequence{
		{{Type: cn, Value: "a"}},
		{{Type: cn, Value: "b"}},
	})
	require.NoError(t, err)
	return raw
}

// withAttribute returns a well-signed request with an attribute that crypto/x509
// does not show: a challenge password.
func withAttribute(t *testing.T, csr *x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	key := newKey(t)
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
