package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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
	certFile   = "cert.pem"
	keyFile    = "key.pem"
	chainFile  = "chain.pem"
	metaFile   = "meta.json"
	unfinished = ".new" // suffix of a folder that is being written
)

// Version is a stored identity.
type Version struct {
	*Pair
	// Number is the folder's number, 1 or higher.
	Number int
	Meta   Meta
}

// logFields are the attributes of a version in the log.
func (v *Version) logFields() []any {
	return []any{
		"serial", v.Facts.Serial, "issuer", v.Facts.Issuer, "not_after", v.Facts.NotAfter,
		"incarnation", v.ID.Incarnation, "sequence", v.Meta.Sequence, "version", v.Number,
	}
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
	// Spent are digests of tokens that paid for this and previous identities.
	Spent []string `json:"spent,omitempty"`
}

// versionStore stores identities in numbered folders, each atomically: it writes a
// folder under another name, syncs it, reads it back and renames it. The pair at the
// configured paths is a copy for operators.
type versionStore struct {
	disk.StateDir     // the folder of the folders
	certPath, keyPath string
	log               *slog.Logger
}

func newVersionStore(c Config, s disk.StateDir, log *slog.Logger) versionStore {
	s.Path = s.File("identity")
	return versionStore{StateDir: s, certPath: c.CertPath, keyPath: c.KeyPath, log: log}
}

// versionName is the name of a version's folder.
func versionName(number int) string { return fmt.Sprintf("%08d", number) }

// A folder contains one version, complete unless it is torn.
type folder struct {
	path   string
	number int
	torn   bool
}

// folders lists the version folders, newest first. Any other name is skipped:
// a folder that was moved aside is never used again.
func (s versionStore) folders() ([]folder, error) {
	entries, err := s.ReadDir(s.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []folder
	for _, e := range entries {
		name, torn := strings.CutSuffix(e.Name(), unfinished)
		n, err := strconv.Atoi(name)
		if err == nil && n > 0 && e.IsDir() && name == versionName(n) {
			out = append(out, folder{s.File(e.Name()), n, torn})
		}
	}
	slices.SortFunc(out, func(a, b folder) int { return b.number - a.number })
	return out, nil
}

// list returns the readable stored versions, newest first.
func (s versionStore) list() ([]*Version, error) {
	folders, err := s.folders()
	if err != nil {
		return nil, err
	}
	var out []*Version
	for _, f := range folders {
		if f.torn {
			continue
		}
		v, err := s.read(f)
		if err != nil {
			s.log.Error("cannot read a stored identity, continuing without it", "version", f.number, "err", err.Error())
			continue
		}
		out = append(out, v)
	}
	return out, nil
}

// parts reads the files of a folder.
func (s versionStore) parts(dir string) (map[string][]byte, error) {
	parts := map[string][]byte{}
	for _, name := range []string{certFile, keyFile, chainFile, metaFile} {
		data, err := s.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		parts[name] = data
	}
	return parts, nil
}

// read parses a version's folder and verifies that it is complete.
func (s versionStore) read(f folder) (*Version, error) {
	parts, err := s.parts(f.path)
	if err != nil {
		return nil, err
	}
	v := &Version{Number: f.number}
	if err := json.Unmarshal(parts[metaFile], &v.Meta); err != nil {
		return nil, fmt.Errorf("%s: %w", metaFile, err)
	}
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
	folders, err := s.folders()
	if err != nil {
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	f := folder{number: 1}
	if len(folders) > 0 {
		f.number = folders[0].number + 1
	}
	f.path = s.File(versionName(f.number) + unfinished)
	v, err := s.write(f, map[string][]byte{certFile: certPEM, chainFile: chainPEM, keyFile: keyPEM, metaFile: meta})
	if err == nil {
		err = s.Rename(f.path, s.File(versionName(f.number)))
	}
	if err != nil {
		s.drop(f.path) //nolint:errcheck // best effort; the next prune removes it
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	if err := s.SyncDir(s.Path); err != nil {
		// A crash may lose the folder, but never a part of it.
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	return v, nil
}

// write fills a folder, syncs it and reads it back.
func (s versionStore) write(f folder, files map[string][]byte) (*Version, error) {
	if err := s.MkdirAll(f.path); err != nil {
		return nil, err
	}
	for _, name := range []string{keyFile, certFile, chainFile, metaFile} {
		if err := s.Put(filepath.Join(f.path, name), files[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := s.SyncDir(f.path); err != nil {
		return nil, err
	}
	stored, err := s.parts(f.path)
	if err == nil && !maps.EqualFunc(stored, files, bytes.Equal) {
		err = errors.New("the stored files differ from the written ones")
	}
	if err != nil {
		return nil, err
	}
	return s.read(f)
}

// install copies a version to the configured paths. It does not write a file that
// is already the same.
func (s versionStore) install(v *Version) error {
	parts, err := s.parts(s.File(versionName(v.Number)))
	if err != nil {
		return err
	}
	if err := s.Replace(s.keyPath, parts[keyFile]); err != nil {
		return err
	}
	return s.Replace(s.certPath, join(parts[certFile], parts[chainFile]))
}

// missing reports that both copies are gone from the configured paths.
func (s versionStore) missing() bool {
	_, cert := s.ReadFile(s.certPath)
	_, key := s.ReadFile(s.keyPath)
	return errors.Is(cert, fs.ErrNotExist) && errors.Is(key, fs.ErrNotExist)
}

// prune removes dropped versions, those older than all kept ones, and folders that
// a crash left half written. A newer folder that cannot be read stays: it may belong
// to another node, or an operator may repair it.
func (s versionStore) prune(kept, dropped []*Version) error {
	folders, err := s.folders()
	if err != nil {
		return err
	}
	oldest := 0
	if len(kept) > 0 {
		oldest = kept[len(kept)-1].Number // the newest is first
	}
	for _, f := range folders {
		if !f.torn && f.number >= oldest && !slices.ContainsFunc(dropped, func(v *Version) bool { return v.Number == f.number }) {
			continue
		}
		if err := s.drop(f.path); err != nil {
			return err
		}
	}
	return nil
}

// drop wipes a folder's files and removes it, the key first.
func (s versionStore) drop(dir string) error {
	for _, name := range []string{keyFile, metaFile, certFile, chainFile} {
		if err := s.Wipe(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := s.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// wipe removes every version and both copies, also damaged ones.
func (s versionStore) wipe() error {
	entries, err := s.ReadDir(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	faults := []error{err, s.Wipe(s.keyPath), s.Wipe(s.certPath)}
	for _, e := range entries {
		remove := s.Wipe
		if e.IsDir() {
			remove = s.drop
		}
		faults = append(faults, remove(s.File(e.Name())))
	}
	return errors.Join(faults...)
}
