package trust_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestParseCertificates(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	block := func(kind string, serial int64) string {
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial)},
			&x509.Certificate{}, public, private)
		require.NoError(t, err)
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	one, two := block("CERTIFICATE", 1), block("CERTIFICATE", 2)
	certs, err := trust.ParseCertificates(one + "\n" + two + " \n")
	require.NoError(t, err)
	require.Len(t, certs, 2)
	require.Equal(t, int64(2), certs[1].SerialNumber.Int64(), "in order")
	require.Equal(t, one+two, trust.EncodeCertificates(certs...))

	certs, err = trust.ParseCertificates("")
	require.NoError(t, err)
	require.Empty(t, certs)

	for name, text := range map[string]string{
		"another block":           one + block("PRIVATE KEY", 3),
		"text after the last one": one + "end",
		"malformed":               one + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})),
	} {
		_, err := trust.ParseCertificates(text)
		require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), name)
	}
}
