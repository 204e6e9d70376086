package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// keepVersions is the number of identities that are kept: the newest and its
// predecessor. The identity in use and the last confirmed one are kept too.
const keepVersions = 2

// The files of a version's folder.
const (
	certFile  = "cert.pem"
	keyFile   = "key.pem"
	chainFile = "chain.pem"
	metaFile  = "meta.json"
	unborn    = ".new" // suffix of a folder that is being written
)

// Version is a stored identity.
type Version struct {
	*Pair
	// Number is the folder's number; 0 is the pair at the configured paths.
	Number int
	Meta   Meta
}

// Meta is what is stored beside a pair. It holds secrets.
type Meta struct {
	Sequence int64             `json:"sequence"`
	Via      trust.IssueMethod `json:"via"`
	StoredAt time.Time         `json:"stored_at"` // the server's time when known
	// RecoveryToken becomes valid at the certificate's first use at the latest,
	// which also revokes the token of the previous version.
	RecoveryToken     string    `json:"recovery_token,omitempty"`
	RecoveryExpiresAt time.Time `json:"recovery_expires_at,omitzero"`
	// Spent are digests of tokens that paid for this and former identities.
	Spent []string `json:"spent,omitempty"`
}

// versionStore stores identities in numbered folders, each atomically: it writes a
// folder under another name, syncs it, reads it back and renames it. The pair at the
// configured paths is a copy for operators.
type versionStore struct {
	dir               string
	certPath, keyPath string
	disk              disk.Files
	log               *slog.Logger
}

func newVersionStore(c Config, s disk.StateDir, log *slog.Logger) versionStore {
	return versionStore{dir: s.File("identity"), certPath: c.CertPath, keyPath: c.KeyPath, disk: s.Files, log: log}
}

func (s versionStore) path(number int, parts ...string) string {
	return filepath.Join(append([]string{s.dir, fmt.Sprintf("%08d", number)}, parts...)...)
}

// numbers lists the version folders, newest first. Any other name is skipped:
// a folder that was moved aside is never used again.
func (s versionStore) numbers() (whole []int, highest int, err error) {
	entries, err := s.disk.System().ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	for _, e := range entries {
		name, torn := strings.CutSuffix(e.Name(), unborn)
		n, err := strconv.Atoi(name)
		if err != nil || n <= 0 || !e.IsDir() || name != fmt.Sprintf("%08d", n) {
			continue
		}
		highest = max(highest, n)
		if !torn {
			whole = append(whole, n)
		}
	}
	slices.SortFunc(whole, func(a, b int) int { return b - a })
	return whole, highest, nil
}

// list returns the readable stored versions, newest first. Without any, it returns the
// pair at the configured paths.
func (s versionStore) list() ([]*Version, error) {
	numbers, _, err := s.numbers()
	if err != nil {
		return nil, err
	}
	var out []*Version
	for _, n := range numbers {
		v, err := s.read(s.path(n))
		if err != nil {
			s.log.Error("cannot read a stored identity, continuing without it", "version", n, "err", err.Error())
			continue
		}
		v.Number = n
		out = append(out, v)
	}
	if loose, err := s.loose(); err == nil && len(out) == 0 {
		out = append(out, loose)
	}
	return out, nil
}

// loose reads the pair at the configured paths.
func (s versionStore) loose() (*Version, error) {
	certPEM, err := s.disk.System().ReadFile(s.certPath)
	if err != nil {
		return nil, err
	}
	keyPEM, err := s.disk.System().ReadFile(s.keyPath)
	if err != nil {
		return nil, err
	}
	id, err := parseIdentity(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	return &Version{Pair: id}, nil
}

// read parses a version's folder and verifies that it is complete.
func (s versionStore) read(dir string) (*Version, error) {
	parts := map[string][]byte{}
	for _, name := range []string{certFile, keyFile, chainFile, metaFile} {
		data, err := s.disk.System().ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		parts[name] = data
	}
	v := &Version{}
	if err := json.Unmarshal(parts[metaFile], &v.Meta); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
	var err error
	v.Pair, err = parseIdentity(join(parts[certFile], parts[chainFile]), parts[keyFile])
	return v, err
}

// join appends the chain to the certificate.
func join(certPEM, chainPEM []byte) []byte {
	return slices.Concat(bytes.TrimRight(certPEM, "\n"), []byte("\n"), chainPEM)
}

// add durably stores a new version and returns it as read back. An error leaves the
// older versions unchanged.
func (s versionStore) add(certPEM, chainPEM, keyPEM []byte, m Meta) (*Version, error) {
	meta, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	_, highest, err := s.numbers()
	if err != nil {
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	number := highest + 1
	dir := s.path(number) + unborn
	v, err := s.write(dir, map[string][]byte{certFile: certPEM, chainFile: chainPEM, keyFile: keyPEM, metaFile: meta})
	if err == nil {
		err = s.disk.System().Rename(dir, s.path(number))
	}
	if err != nil {
		s.drop(dir) //nolint:errcheck // best effort; the next prune removes it
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	if err := s.disk.System().SyncDir(s.dir); err != nil {
		// A crash may lose the folder, but never a part of it.
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	v.Number = number
	return v, nil
}

// write fills a folder, syncs it and reads it back.
func (s versionStore) write(dir string, files map[string][]byte) (*Version, error) {
	if err := s.disk.System().MkdirAll(dir); err != nil {
		return nil, err
	}
	for _, name := range []string{keyFile, certFile, chainFile, metaFile} {
		if err := s.disk.Put(filepath.Join(dir, name), files[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := s.disk.System().SyncDir(dir); err != nil {
		return nil, err
	}
	for name, want := range files {
		got, err := s.disk.System().ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(got, want) {
			return nil, fmt.Errorf("%s differs from what was written", name)
		}
	}
	return s.read(dir)
}

// install copies a version to the configured paths. It does not write a file that
// is already the same.
func (s versionStore) install(v *Version) error {
	certPEM, err := s.disk.System().ReadFile(s.path(v.Number, certFile))
	if err != nil {
		return err
	}
	chainPEM, err := s.disk.System().ReadFile(s.path(v.Number, chainFile))
	if err != nil {
		return err
	}
	keyPEM, err := s.disk.System().ReadFile(s.path(v.Number, keyFile))
	if err != nil {
		return err
	}
	for _, f := range []struct {
		path string
		data []byte
	}{{s.keyPath, keyPEM}, {s.certPath, join(certPEM, chainPEM)}} {
		if old, err := s.disk.System().ReadFile(f.path); err == nil && bytes.Equal(old, f.data) {
			continue
		}
		if err := s.disk.System().MkdirAll(filepath.Dir(f.path)); err != nil {
			return err
		}
		if err := s.disk.Write(f.path, f.data); err != nil {
			return err
		}
	}
	return nil
}

// missing reports that both copies are gone from the configured paths.
func (s versionStore) missing() bool {
	_, cert := s.disk.System().ReadFile(s.certPath)
	_, key := s.disk.System().ReadFile(s.keyPath)
	return errors.Is(cert, fs.ErrNotExist) && errors.Is(key, fs.ErrNotExist)
}
