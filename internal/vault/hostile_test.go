package vault

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/testkit/csrtest"
)

// No certificate contains a field that a request asked for. Two hundred correctly
// signed requests ask for random mixtures of extras: the adapter rejects each one,
// and Vault's role alone, without the adapter's check, issues either nothing or the
// bare certificate.
func TestHostileRequests(t *testing.T) {
	b := prepared(t)
	c := b.login(t, "api")
	const seed, requests = 20, 200
	random := rand.New(rand.NewPCG(seed, seed))
	signed := 0
	for i := range requests {
		template := hostile(t, random)
		key, id := csrtest.Key(t), nodeIdentity()
		csr := csrtest.New(t, template, key)
		_, err := c.Issue(t.Context(), csr, id)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%v", err)
		require.Contains(t, []string{"csr_subject", "csr_san", "csr_ca", "csr_extension"}, schema.AsError(err).Reason, "%v", err)

		leaf, _, err := c.signCSR(t.Context(), "issue", nodeMount, nodeRole, csr.Raw, map[string]any{"uri_sans": id.URI()})
		if err != nil {
			continue
		}
		signed++
		want := leafSpec{spki: csr.RawSubjectPublicKeyInfo, names: []string{id.URI()}, usage: x509.ExtKeyUsageClientAuth, lifetime: nodeCertTTL}
		require.Empty(t, want.fault(leaf), "request %d of seed %d: %+v", i, seed, template)
	}
	t.Logf("Vault's role signed %d of %d requests, each to a bare certificate", signed, requests)
	require.Positive(t, signed)
}

// hostile is a request for one to four things that a caller must not set.
func hostile(t *testing.T, random *rand.Rand) x509.CertificateRequest {
	t.Helper()
	other, err := url.Parse(nodeIdentity().URI())
	require.NoError(t, err)
	extension := func(critical bool, value []byte, id ...int) func(*x509.CertificateRequest) {
		return func(r *x509.CertificateRequest) {
			for _, e := range r.ExtraExtensions {
				if e.Id.Equal(id) {
					return
				}
			}
			r.ExtraExtensions = append(r.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier(id), Critical: critical, Value: value})
		}
	}
	name := fmt.Sprintf("x%d.test", random.IntN(1e6))
	changes := []func(*x509.CertificateRequest){
		func(r *x509.CertificateRequest) { r.Subject.CommonName = name },
		func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters", name} },
		func(r *x509.CertificateRequest) { r.Subject.SerialNumber = "7" },
		func(r *x509.CertificateRequest) { r.RawSubject = csrtest.TwoCommonNames(t) },
		func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, name, "*."+name) },
		func(r *x509.CertificateRequest) {
			r.IPAddresses = append(r.IPAddresses, net.IPv4(127, 0, 0, 1), net.IPv6loopback)
		},
		func(r *x509.CertificateRequest) { r.EmailAddresses = append(r.EmailAddresses, "a@"+name) },
		func(r *x509.CertificateRequest) { r.URIs = append(r.URIs, other) },
		extension(true, []byte{0x30, 3, 1, 1, 0xff}, 2, 5, 29, 19),                                                    // a CA
		extension(true, []byte{3, 2, 1, 6}, 2, 5, 29, 15),                                                             // certSign, crlSign
		extension(false, []byte{0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 1}, 2, 5, 29, 37),                             // serverAuth
		extension(true, []byte{0x30, 6, 6, 4, 0x55, 0x1d, 0x25, 0}, 2, 5, 29, 37),                                     // any use
		extension(false, []byte{0x30, 14, 0xa0, 12, 6, 3, 0x2a, 3, 4, 0xa0, 5, 0x0c, 3, 'x', 'y', 'z'}, 2, 5, 29, 17), // otherName
		extension(true, []byte{5, 0}, 1, 2, 3, 4),                                                                     // unknown and critical
		extension(false, []byte{0x30, 8, 0x30, 6, 6, 4, 0x55, 0x1d, 0x20, 0}, 2, 5, 29, 32),                           // any policy
		extension(false, []byte{4, 2, 0, 0}, 2, 5, 29, 14),                                                            // a key id
	}
	var r x509.CertificateRequest
	for range 1 + random.IntN(4) {
		changes[random.IntN(len(changes))](&r)
	}
	return r
}
