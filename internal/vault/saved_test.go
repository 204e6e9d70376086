package vault

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// certify issues a certificate; a nil parent makes a root.
func certify(t *testing.T, parent *tls.Certificate, change func(c *x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	issuer, signer := c, any(key)
	if parent != nil {
		issuer, signer = parent.Leaf, parent.PrivateKey
		c.IsCA, c.Subject, c.KeyUsage, c.DNSNames = false, pkix.Name{}, x509.KeyUsageDigitalSignature, []string{"localhost"}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if change != nil {
		change(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, issuer, key.Public(), signer)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Every file that this process did not save for this environment and host, that is damaged, or
// that others may have read is ignored with its reason.
func TestSavedCertificate(t *testing.T) {
	ca := certify(t, nil, nil)
	roots := generations{live: []*x509.Certificate{ca.Leaf}}
	good := certify(t, &ca, nil)
	type state struct {
		conf    Config
		file    string
		content []byte
		host    string
		now     time.Time
	}
	edit := func(change func(s *saved)) func(t *testing.T, s *state) {
		return func(t *testing.T, s *state) {
			t.Helper()
			var doc saved
			require.NoError(t, json.Unmarshal(s.content, &doc))
			change(&doc)
			var err error
			s.content, err = json.Marshal(doc)
			require.NoError(t, err)
		}
	}
	certificate := func(issuer *tls.Certificate, change func(c *x509.Certificate)) func(t *testing.T, s *state) {
		return func(t *testing.T, s *state) {
			t.Helper()
			var err error
			s.content, err = encodeSaved(testEnv, certify(t, issuer, change), roots, roots)
			require.NoError(t, err)
		}
	}
	other := certify(t, nil, nil)
	for name, test := range map[string]struct {
		before func(t *testing.T, s *state) // changes the content
		after  func(s *state) error         // changes the file
		says   string                       // "" if the file is used
	}{
		"as saved":              {},
		"no directory":          {before: func(_ *testing.T, s *state) { s.conf.StateDir = "" }, says: "GPUAAS_STATE_DIR is not set"},
		"missing":               {after: func(s *state) error { return os.Remove(s.file) }, says: "does not exist"},
		"readable by the world": {after: func(s *state) error { return os.Chmod(s.file, 0o604) }, says: "its key may be known to them"},
		"writable by its group": {after: func(s *state) error { return os.Chmod(s.file, 0o620) }, says: "other users can access it"},
		"a symbolic link": {after: func(s *state) error {
			return errors.Join(os.Rename(s.file, s.file+".real"), os.Symlink(s.file+".real", s.file))
		}, says: "too many levels of symbolic links"},
		"truncated":              {before: func(_ *testing.T, s *state) { s.content = s.content[:len(s.content)/2] }, says: "it is damaged"},
		"empty":                  {before: func(_ *testing.T, s *state) { s.content = nil }, says: "it is damaged"},
		"too large":              {before: func(_ *testing.T, s *state) { s.content = make([]byte, maxSaved+1) }, says: "at most 1 MiB"},
		"of another version":     {before: edit(func(s *saved) { s.V = 2 }), says: "another version of this program"},
		"of another environment": {before: edit(func(s *saved) { s.Env = "prod" }), says: "another environment"},
		"with another key":       {before: edit(func(s *saved) { s.Key = mustSaved(t, certify(t, &ca, nil), roots).Key }), says: "do not match"},
		"without CAs of nodes":   {before: edit(func(s *saved) { s.NodeCAs.Live = "" }), says: "CA certificates are damaged"},
		"of another host":        {before: func(_ *testing.T, s *state) { s.host = "api.other.test" }, says: "not api.other.test"},
		"expired":                {before: func(_ *testing.T, s *state) { s.now = time.Now().Add(2 * time.Hour) }, says: "expired"},
		"not valid yet":          {before: func(_ *testing.T, s *state) { s.now = time.Now().Add(-2 * time.Hour) }, says: "not yet valid"},
		"of another CA":          {before: certificate(&other, nil), says: "unknown authority"},
		"for a client": {before: certificate(&ca, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
			says: "incompatible key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			content, err := encodeSaved(testEnv, good, roots, roots)
			require.NoError(t, err)
			s := &state{Config{StateDir: dir, Env: testEnv}, filepath.Join(dir, savedFile), content, "localhost", time.Now()}
			if test.before != nil {
				test.before(t, s)
			}
			require.NoError(t, writeSaved(dir, s.content))
			if test.after != nil {
				require.NoError(t, test.after(s))
			}
			got, err := readSaved(s.conf, s.host, s.now)
			if test.says == "" {
				require.NoError(t, err)
				require.Equal(t, good.Leaf, got.server.Leaf)
				require.Equal(t, roots, got.node)
				return
			}
			require.ErrorContains(t, err, test.says)
			requireKind(t, err, schema.KindServiceUnavailable, ReasonNotSaved)
			require.NotContains(t, err.Error(), "PRIVATE KEY")
		})
	}
}

func mustSaved(t *testing.T, server tls.Certificate, cas generations) (s saved) {
	t.Helper()
	content, err := encodeSaved(testEnv, server, cas, cas)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &s))
	return s
}

// A process that starts while Vault is sealed serves with what an earlier one saved. It says so,
// and it replaces the certificate and reads the CAs again once Vault is available.
func TestResume(t *testing.T) {
	b := prepared(t)
	conf := b.config("api")
	conf.StateDir = filepath.Join(t.TempDir(), "state")
	file := filepath.Join(conf.StateDir, savedFile)
	first := b.loginWith(t, conf)
	before, err := first.ServerCertificate(t.Context())
	require.NoError(t, err)
	roots, err := first.Roots(t.Context())
	require.NoError(t, err)
	require.NoError(t, before.Healthy())
	first.Close()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	b.Seal(t)
	_, err = Login(t.Context(), conf)
	requireKind(t, err, schema.KindServiceUnavailable, ReasonSealed)
	c, err := Resume(conf, "localhost")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	server, err := c.ServerCertificate(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Leaf(), server.Leaf())
	requireKind(t, server.Healthy(), schema.KindServiceUnavailable, ReasonResumed)
	got, err := c.Roots(t.Context())
	require.NoError(t, err)
	require.Equal(t, roots, got)
	harness.Eventually(t, "the reason", func() bool { return schema.AsError(c.Healthy(t.Context())).Reason == ReasonSealed })
	_, err = c.ServerCA(t.Context())
	require.NoError(t, err)
	requireKind(t, c.Follow(t.Context(), b.set), schema.KindServiceUnavailable, ReasonSealed)

	b.Unseal(t)
	harness.Eventually(t, "a new certificate", func() bool { return server.Healthy() == nil })
	require.NotEqual(t, before.Leaf().SerialNumber, server.Leaf().SerialNumber)
	require.NoError(t, c.Healthy(t.Context()))
	require.NoError(t, c.Follow(t.Context(), b.set))
	b.write(t, "pki-node/root/generate/internal", map[string]any{
		"common_name": "gpuaas test node CA G2", "issuer_name": "g2", "key_type": "ec", "key_bits": 256, "ttl": "87600h",
	})
	_, err = c.readCAs(t.Context(), c.nodeCAs)
	require.NoError(t, err)
	next, err := readSaved(conf, "localhost", time.Now())
	require.NoError(t, err)
	require.Equal(t, server.Leaf(), next.server.Leaf)
	require.Len(t, next.node.live, 2, "the CAs that were read since")
}

// A certificate that cannot be saved is served, and the fault is visible.
func TestCertificateThatCannotBeSaved(t *testing.T) {
	b := prepared(t)
	conf := b.config("api")
	conf.StateDir = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(conf.StateDir, nil, 0o600))
	c := b.loginWith(t, conf)
	server, err := c.ServerCertificate(t.Context())
	require.NoError(t, err)
	_, err = c.Roots(t.Context())
	require.NoError(t, err)
	requireKind(t, server.Healthy(), schema.KindServiceUnavailable, ReasonSaveFails)
}
