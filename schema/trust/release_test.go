package trust_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

func releaseKeys(t *testing.T) (ed25519.PrivateKey, []trust.VerifierKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	keys, err := trust.ParseReleaseKeys(base64.StdEncoding.EncodeToString(public))
	require.NoError(t, err)
	return private, keys
}

func TestRelease(t *testing.T) {
	t.Parallel()
	private, keys := releaseKeys(t)
	good := trust.Release{V: 1, Version: "v1.2.3-rc.1+5", Size: 3, SHA256: schema.SHA256Hex([]byte("abc"))}
	document, err := trust.SignRelease(good, private)
	require.NoError(t, err)
	got, err := trust.OpenRelease(document, keys)
	require.NoError(t, err)
	require.Equal(t, good, got)

	_, others := releaseKeys(t)
	for name, c := range map[string]struct {
		document []byte
		keys     []trust.VerifierKey
		reason   string
	}{
		"another key": {document, others, trust.ReasonSignature},
		"no key":      {document, nil, trust.ReasonSignature},
		"changed":     {[]byte(strings.Replace(string(document), `"payload":"ey`, `"payload":"eX`, 1)), keys, trust.ReasonSignature},
		"too large":   {append(document, strings.Repeat(" ", trust.MaxReleaseDocument)...), keys, trust.ReasonTooLarge},
		"no envelope": {[]byte("{}"), keys, trust.ReasonPayloadType},
	} {
		_, err := trust.OpenRelease(c.document, c.keys)
		require.Equal(t, c.reason, schema.AsError(err).Reason, "%s: %v", name, err)
	}
}

// A malformed release is neither signed nor opened, also if another program signed it: the agent makes a path of
// its version.
func TestMalformedRelease(t *testing.T) {
	t.Parallel()
	private, keys := releaseKeys(t)
	sum := schema.SHA256Hex(nil)
	for name, r := range map[string]trust.Release{
		"format":          {V: 2, Version: "v1", Size: 1, SHA256: sum},
		"no version":      {V: 1, Size: 1, SHA256: sum},
		"path as version": {V: 1, Version: "../v1", Size: 1, SHA256: sum},
		"hidden file":     {V: 1, Version: ".v1", Size: 1, SHA256: sum},
		"option":          {V: 1, Version: "-v1", Size: 1, SHA256: sum},
		"empty":           {V: 1, Version: "v1", SHA256: sum},
		"too large":       {V: 1, Version: "v1", Size: trust.MaxReleaseBytes + 1, SHA256: sum},
		"short digest":    {V: 1, Version: "v1", Size: 1, SHA256: sum[2:]},
		"upper case":      {V: 1, Version: "v1", Size: 1, SHA256: strings.ToUpper(sum)},
	} {
		_, err := trust.SignRelease(r, private)
		require.Error(t, err, name)
		body, err := json.Marshal(r)
		require.NoError(t, err)
		signed, err := trust.SignEnvelope(trust.ReleasePayloadType, body, private)
		require.NoError(t, err)
		_, err = trust.OpenRelease(signed, keys)
		require.Contains(t, []string{trust.ReasonBody, trust.ReasonVersion}, schema.AsError(err).Reason, name)
	}
}

func TestParseReleaseKeys(t *testing.T) {
	t.Parallel()
	keys, err := trust.ParseReleaseKeys("")
	require.NoError(t, err)
	require.Empty(t, keys)
	a, b := strings.Repeat("A", 43)+"=", "B"+strings.Repeat("A", 42)+"="
	keys, err = trust.ParseReleaseKeys(a + ", " + b)
	require.NoError(t, err)
	require.Len(t, keys, 2)
	require.NotEqual(t, keys[0].KeyID, keys[1].KeyID)
	five := []string{a, b}
	for _, first := range "CDE" {
		five = append(five, string(first)+a[1:])
	}
	_, err = trust.ParseReleaseKeys(strings.Join(five[:4], ","))
	require.NoError(t, err)
	for bad, want := range map[string]string{
		"x":                     "must be the base64 of an Ed25519 public key",
		a + ",":                 "must be the base64 of an Ed25519 public key",
		a[4:]:                   "must be the base64 of an Ed25519 public key",
		a + "," + a:             "a release key is listed twice",
		strings.Join(five, ","): "more than 4 release keys",
	} {
		_, err := trust.ParseReleaseKeys(bad)
		require.ErrorContains(t, err, want, bad)
	}
}

// TestReadReleaseKey: a key that was read signs what its public key verifies, and an error contains nothing
// of the file.
func TestReadReleaseKey(t *testing.T) {
	t.Parallel()
	private, keys := releaseKeys(t)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	other, err := x509.MarshalPKCS8PrivateKey(curve)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "key.pem")
	read := func(text []byte) (ed25519.PrivateKey, error) {
		require.NoError(t, os.WriteFile(file, text, 0o600))
		return trust.ReadReleaseKey(file)
	}
	block := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}) }
	key, err := read(block(der))
	require.NoError(t, err)
	listed, err := trust.ParseReleaseKeys(trust.ReleasePublicKey(key))
	require.NoError(t, err)
	require.Equal(t, keys, listed)
	envelope, err := trust.SignEnvelope("text/plain", []byte("body"), key)
	require.NoError(t, err)
	body, _, err := trust.OpenEnvelope("text/plain", envelope, keys)
	require.NoError(t, err)
	require.Equal(t, "body", string(body))
	for _, bad := range [][]byte{nil, []byte("canary"), block([]byte("canary")), block(other), []byte("-----BEGIN canary-----")} {
		_, err := read(bad)
		require.ErrorContains(t, err, "the key is not")
		require.NotContains(t, err.Error(), "canary")
	}
	_, err = trust.ReadReleaseKey(file + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
