package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

// failingDisk breaks the nth step (open, write, sync, close) of all writes: a
// write is torn in its middle, as on a full disk.
type failingDisk struct{ left int }

func (d *failingDisk) step() error {
	d.left--
	if d.left < 0 {
		return syscall.ENOSPC
	}
	return nil
}

func (d *failingDisk) create(path string, mode os.FileMode) (outFile, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	return &failingFile{f, d}, err
}

type failingFile struct {
	*os.File
	disk *failingDisk
}

func (f *failingFile) Write(b []byte) (int, error) {
	if err := f.disk.step(); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *failingFile) Sync() error {
	if err := f.disk.step(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *failingFile) Close() error { return errors.Join(f.File.Close(), f.disk.step()) }

func newPair(t *testing.T, ca authority, id schema.Identity) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return append(ca.node(t, id, &key.PublicKey, time.Time{}), ca.pem...), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestTornIdentity breaks the replacement of an identity at each of its steps:
// what is loaded afterwards is the old pair or the new one, whole.
func TestTornIdentity(t *testing.T) {
	t.Parallel()
	ca, id := newAuthority(t, "node ca"), schema.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	oldCert, oldKey := newPair(t, ca, id)
	newCert, newKey := newPair(t, ca, id)
	was, err := parseIdentity(oldCert, oldKey)
	require.NoError(t, err)
	is, err := parseIdentity(newCert, newKey)
	require.NoError(t, err)
	succeeded := false
	for n := 0; !succeeded; n++ {
		dir := t.TempDir()
		s := identityStore{certPath: filepath.Join(dir, "cert.pem"), keyPath: filepath.Join(dir, "key.pem"), nextPath: filepath.Join(dir, "next")}
		require.NoError(t, s.save(oldCert, oldKey))
		full := &failingDisk{left: n}
		broken := s
		broken.disk.create = full.create
		err := broken.save(newCert, newKey)
		succeeded = err == nil
		if !succeeded {
			require.ErrorIs(t, err, syscall.ENOSPC)
			read, err := s.read()
			require.NoError(t, err, "step %d", n)
			require.Equal(t, was.facts, read.facts, "step %d: the old pair is not in place", n)
		}
		loaded, err := s.load()
		require.NoError(t, err, "step %d", n)
		require.Contains(t, []schema.CertFacts{was.facts, is.facts}, loaded.facts)
		if succeeded {
			require.Equal(t, is.facts, loaded.facts)
			require.Greater(t, n, 8)
		}
		fi, err := os.Stat(s.keyPath)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(privateFile), fi.Mode().Perm())
	}
}

// TestIdentityRollsForward crashes between the two renames.
func TestIdentityRollsForward(t *testing.T) {
	t.Parallel()
	ca, id := newAuthority(t, "node ca"), schema.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	oldCert, oldKey := newPair(t, ca, id)
	newCert, newKey := newPair(t, ca, id)
	dir := t.TempDir()
	s := identityStore{certPath: filepath.Join(dir, "cert.pem"), keyPath: filepath.Join(dir, "key.pem"), nextPath: filepath.Join(dir, "next")}
	require.NoError(t, s.save(oldCert, oldKey))
	require.NoError(t, os.WriteFile(s.nextPath, append(newCert, newKey...), privateFile))
	require.NoError(t, os.WriteFile(s.keyPath, newKey, privateFile))
	_, err := s.read()
	require.ErrorIs(t, err, errNoIdentity)
	loaded, err := s.load()
	require.NoError(t, err)
	is, err := parseIdentity(newCert, newKey)
	require.NoError(t, err)
	require.Equal(t, is.facts, loaded.facts)
	require.NoFileExists(t, s.nextPath)

	// While the disk is full the old pair is used; between the renames, where
	// none fits, it is told apart from having no identity at all.
	full := s
	full.disk.create = (&failingDisk{}).create
	require.NoError(t, os.WriteFile(s.nextPath, append(oldCert, oldKey...), privateFile))
	loaded, err = full.load()
	require.NoError(t, err)
	require.Equal(t, is.facts, loaded.facts)
	require.NoError(t, os.WriteFile(s.keyPath, oldKey, privateFile))
	_, err = full.load()
	require.ErrorIs(t, err, errNotInstalled)
	require.NoError(t, os.WriteFile(s.keyPath, newKey, privateFile))

	require.NoError(t, os.WriteFile(s.nextPath, newCert[:len(newCert)/2], privateFile))
	loaded, err = s.load()
	require.NoError(t, err)
	require.Equal(t, is.facts, loaded.facts)
}

func TestCertSourceFollowsTheFiles(t *testing.T) {
	t.Parallel()
	ca, id := newAuthority(t, "node ca"), schema.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1}
	dir := t.TempDir()
	s := identityStore{certPath: filepath.Join(dir, "cert.pem"), keyPath: filepath.Join(dir, "key.pem"), nextPath: filepath.Join(dir, "next")}
	src := &certSource{store: s}
	_, err := src.get()
	require.ErrorIs(t, err, errNoIdentity)
	var serials []string
	for range 2 {
		certPEM, keyPEM := newPair(t, ca, id)
		require.NoError(t, s.save(certPEM, keyPEM))
		got, err := src.get()
		require.NoError(t, err)
		serials = append(serials, got.facts.Serial)
	}
	require.NotEqual(t, serials[0], serials[1])
	require.NoError(t, os.WriteFile(s.certPath, []byte("torn"), privateFile))
	got, err := src.get()
	require.NoError(t, err)
	require.Equal(t, serials[1], got.facts.Serial)
}

func TestCheckIssuer(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "node ca"), newAuthority(t, "next node ca")
	certPEM, keyPEM := newPair(t, ca, schema.Identity{Env: "test", NodeID: schema.NewID(), Incarnation: 1})
	id, err := parseIdentity(certPEM, keyPEM)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "ca.crt")
	require.NoError(t, id.checkIssuer(path))
	require.NoError(t, os.WriteFile(path, other.pem, privateFile))
	require.ErrorContains(t, id.checkIssuer(path), "node ca")
	require.NoError(t, os.WriteFile(path, append(other.pem, ca.pem...), privateFile))
	require.NoError(t, id.checkIssuer(path))
}
