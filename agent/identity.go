package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// identity is a certificate with its key, as loaded from disk.
type identity struct {
	cert  tls.Certificate
	leaf  *x509.Certificate
	id    schema.Identity
	facts schema.CertFacts
}

// errNoIdentity means that there is no usable pair on disk.
var errNoIdentity = errors.New("no certificate and key")

// errNotInstalled means that a new pair waits in the state folder.
var errNotInstalled = errors.New("the new identity cannot be put in place")

// parseIdentity checks that the pair belongs together and names a node.
func parseIdentity(certPEM, keyPEM []byte) (*identity, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	leaf := pair.Leaf
	if len(leaf.URIs) != 1 {
		return nil, fmt.Errorf("the certificate holds %d URI names, want 1", len(leaf.URIs))
	}
	id, err := schema.ParseIdentity(leaf.URIs[0])
	if err != nil {
		return nil, err
	}
	return &identity{cert: pair, leaf: leaf, id: id, facts: schema.FactsOf(leaf)}, nil
}

// matches refuses an identity of another node or environment, or one out of its
// time.
func (i *identity) matches(c Config, now time.Time) error {
	switch {
	case i.id.NodeID != c.NodeID:
		return fmt.Errorf("the certificate names node %s, not %s", i.id.NodeID, c.NodeID)
	case i.id.Env != c.Env:
		return fmt.Errorf("the certificate names environment %q, not %q", i.id.Env, c.Env)
	case now.After(i.leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s", i.leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// checkIssuer compares the certificate with the bundle of node issuers: a pair
// may be whole and in its time and yet be of a node CA that was replaced. A
// bundle that is not there says nothing.
func (i *identity) checkIssuer(bundlePath string) error {
	text, err := os.ReadFile(bundlePath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s holds no certificate", bundlePath)
	}
	between := x509.NewCertPool()
	for _, der := range i.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err = i.leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: i.leaf.NotBefore.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("issuer %q is not in %s: %w", i.facts.Issuer, bundlePath, err)
	}
	return nil
}

// identityStore keeps the pair at two well-known paths. Two files cannot be
// replaced at once, so a new pair is first written whole to one file of the
// state folder; a crash in the middle of the replacement is rolled forward from
// it by the next load.
type identityStore struct {
	certPath, keyPath string
	nextPath          string // both PEMs in one file
	disk              disk
}

func newIdentityStore(c Config, s stateDir) identityStore {
	return identityStore{c.CertPath, c.KeyPath, s.file("identity-next.pem"), s.disk}
}

// load returns the stored pair. Its error wraps errNoIdentity when there is none
// that fits together, and errNotInstalled when there is a new one that the disk
// does not take: asking for another would not help then.
func (s identityStore) load() (*identity, error) {
	stuck := s.rollForward()
	id, err := s.read()
	if err != nil && stuck != nil {
		return nil, fmt.Errorf("%w: %w", errNotInstalled, stuck)
	}
	return id, err
}

// read is load without touching the disk.
func (s identityStore) read() (*identity, error) {
	certPEM, err := os.ReadFile(s.certPath)
	if err == nil {
		var keyPEM []byte
		if keyPEM, err = os.ReadFile(s.keyPath); err == nil {
			var id *identity
			if id, err = parseIdentity(certPEM, keyPEM); err == nil {
				return id, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: %w", errNoIdentity, err)
}

// rollForward ends a replacement that a crash or a full disk interrupted. A
// next file that is no whole pair was never valid and is removed.
func (s identityStore) rollForward() error {
	both, err := os.ReadFile(s.nextPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	certPEM, keyPEM := splitPEM(both)
	if _, err := parseIdentity(certPEM, keyPEM); err != nil {
		return os.Remove(s.nextPath)
	}
	return s.install(certPEM, keyPEM)
}

// save durably replaces the pair. On an error the old pair is still in place,
// or the new one will be at the next load.
func (s identityStore) save(certPEM, keyPEM []byte) error {
	if err := s.disk.write(s.nextPath, append(bytes.Clone(certPEM), keyPEM...)); err != nil {
		return fmt.Errorf("storing the new identity: %w", err)
	}
	return s.install(certPEM, keyPEM)
}

// install puts both files in place; nothing is replaced before both are
// written.
func (s identityStore) install(certPEM, keyPEM []byte) error {
	for _, p := range []string{s.certPath, s.keyPath} {
		if err := os.MkdirAll(filepath.Dir(p), privateDir); err != nil {
			return err
		}
	}
	keyTmp, err := s.disk.stage(s.keyPath, keyPEM)
	if err != nil {
		return fmt.Errorf("storing the key: %w", err)
	}
	certTmp, err := s.disk.stage(s.certPath, certPEM)
	if err != nil {
		os.Remove(keyTmp) //nolint:errcheck // best effort; the next load writes it again
		return fmt.Errorf("storing the certificate: %w", err)
	}
	for _, r := range [][2]string{{keyTmp, s.keyPath}, {certTmp, s.certPath}} {
		if err := os.Rename(r[0], r[1]); err != nil {
			return err
		}
		if err := syncDir(filepath.Dir(r[1])); err != nil {
			return err
		}
	}
	return os.Remove(s.nextPath)
}

// splitPEM separates certificates from keys.
func splitPEM(data []byte) (certs, keys []byte) {
	for {
		var b *pem.Block
		if b, data = pem.Decode(data); b == nil {
			return certs, keys
		}
		if b.Type == "CERTIFICATE" {
			certs = append(certs, pem.EncodeToMemory(b)...)
		} else {
			keys = append(keys, pem.EncodeToMemory(b)...)
		}
	}
}

// certSource hands the pair to TLS handshakes and follows the files: each
// handshake stats them and reads them again when they changed. A pair that does
// not read keeps the last good one in use.
type certSource struct {
	store identityStore

	mu      sync.Mutex
	stamp   [2]fileStamp
	current *identity
}

type fileStamp struct {
	mod  time.Time
	size int64
}

func (c *certSource) get() (*identity, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stamp := [2]fileStamp{stampOf(c.store.certPath), stampOf(c.store.keyPath)}
	if c.current != nil && stamp == c.stamp {
		return c.current, nil
	}
	id, err := c.store.read()
	if err != nil {
		if c.current != nil {
			return c.current, nil
		}
		return nil, err
	}
	c.current, c.stamp = id, stamp
	return id, nil
}

func stampOf(path string) fileStamp {
	fi, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{fi.ModTime(), fi.Size()}
}
