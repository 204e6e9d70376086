package trust_test

import (
	"crypto/ed25519"
	"encoding/base64"
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

func TestSignReleaseRejects(t *testing.T) {
	t.Parallel()
	private, _ := releaseKeys(t)
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
	for _, bad := range []string{"x", a + "," + a, a + ",", a[4:], strings.Join([]string{a, b, a, b, a}, ",")} {
		_, err := trust.ParseReleaseKeys(bad)
		require.Error(t, err, bad)
	}
}
