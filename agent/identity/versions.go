package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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

// Version is a stored identity.
type Version struct {
	*Pair
	// Number is the number of the file, 1 or higher.
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

// Meta is the stored form of a version: the pair in PEM, and what came with it. It
// holds secrets.
type Meta struct {
	Certificate string            `json:"certificate"`
	Chain       string            `json:"chain"`
	Key         string            `json:"key"`
	Sequence    int64             `json:"sequence"`
	Via         trust.IssueMethod `json:"via"`
	StoredAt    time.Time         `json:"stored_at"` // the server's time when known
	// RecoveryToken becomes valid at the certificate's first use at the latest,
	// which also revokes the token of the previous version.
	RecoveryToken     string    `json:"recovery_token,omitempty"`
	RecoveryExpiresAt time.Time `json:"recovery_expires_at,omitzero"`
	// Spent are digests of tokens that were used to obtain this and previous identities.
	Spent []string `json:"spent,omitempty"`
}

// certificates returns the certificate followed by its chain.
func (m Meta) certificates() []byte {
	return slices.Concat(bytes.TrimRight([]byte(m.Certificate), "\n"), []byte("\n"), []byte(m.Chain))
}

// equal compares the stored forms.
func (m Meta) equal(other Meta) bool {
	a, errA := json.Marshal(m)
	b, errB := json.Marshal(other)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// versionStore stores each identity as a numbered file. The pair at the configured
// paths is a copy for operators.
type versionStore struct {
	disk.StateDir     // the folder of the files
	certPath, keyPath string
	log               *slog.Logger
}

func newVersionStore(c Config, s disk.StateDir, log *slog.Logger) versionStore {
	s.Path = s.File("identity")
	return versionStore{StateDir: s, certPath: c.CertPath, keyPath: c.KeyPath, log: log}
}

// path returns the path of a version's file.
func (s versionStore) path(number int) string { return s.File(fmt.Sprintf("%08d.json", number)) }

// number returns the number of a version's file, 0 for a file with another name. Such a
// file was moved aside and is never used again.
func (s versionStore) number(name string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(name, ".json"))
	if err != nil || n < 1 || s.File(name) != s.path(n) {
		return 0
	}
	return n
}

// entries lists the folder, none before it exists.
func (s versionStore) entries() ([]fs.DirEntry, error) {
	entries, err := s.ReadDir(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return entries, err
}

// numbers lists the stored versions, newest first.
func (s versionStore) numbers() ([]int, error) {
	entries, err := s.entries()
	var out []int
	for _, e := range slices.Backward(entries) { // sorted by name
		if n := s.number(e.Name()); n > 0 {
			out = append(out, n)
		}
	}
	return out, err
}

// list returns the readable stored versions, newest first.
func (s versionStore) list() ([]*Version, error) {
	numbers, err := s.numbers()
	if err != nil {
		return nil, err
	}
	var out []*Version
	for _, n := range numbers {
		v, err := s.read(n)
		if err != nil {
			s.log.Error("cannot read a stored identity, continuing without it", "version", n, "err", err.Error())
			continue
		}
		out = append(out, v)
	}
	return out, nil
}

// read parses a stored version.
func (s versionStore) read(number int) (*Version, error) {
	v := &Version{Number: number}
	if _, err := s.ReadJSON(s.path(number), &v.Meta); err != nil {
		return nil, err
	}
	var err error
	v.Pair, err = parseIdentity(v.Meta.certificates(), []byte(v.Meta.Key))
	return v, err
}

// add durably stores a new version and returns it as read back. An error leaves the
// older versions unchanged and no new one.
func (s versionStore) add(m Meta) (*Version, error) {
	numbers, err := s.numbers()
	number := 1
	if len(numbers) > 0 {
		number = numbers[0] + 1
	}
	if err == nil {
		err = s.MkdirAll(s.Path)
	}
	if err == nil {
		err = s.WriteJSON(s.path(number), m)
	}
	if err != nil {
		return nil, fmt.Errorf("storing the new identity: %w", err)
	}
	v, err := s.read(number)
	if err == nil && !v.Meta.equal(m) {
		err = errors.New("the file differs from what was written")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the new identity back: %w", err), s.Wipe(s.path(number)))
	}
	return v, nil
}

// install copies a version to the configured paths. It does not write a file that
// is already the same.
func (s versionStore) install(v *Version) error {
	if err := s.Replace(s.keyPath, []byte(v.Meta.Key)); err != nil {
		return err
	}
	return s.Replace(s.certPath, v.Meta.certificates())
}

// missing reports that both copies are gone from the configured paths.
func (s versionStore) missing() bool {
	_, cert := s.ReadFile(s.certPath)
	_, key := s.ReadFile(s.keyPath)
	return errors.Is(cert, fs.ErrNotExist) && errors.Is(key, fs.ErrNotExist)
}

// prune removes dropped versions, those older than all kept ones, and the staged files
// that a crash left, which hold secrets. A newer file that cannot be read stays: it may
// belong to another node, or an operator may repair it.
func (s versionStore) prune(kept, dropped []*Version) error {
	entries, err := s.entries()
	if err != nil {
		return err
	}
	oldest := 0
	if len(kept) > 0 {
		oldest = kept[len(kept)-1].Number // the newest is first
	}
	for _, e := range entries {
		n := s.number(e.Name())
		old := n > 0 && n < oldest || slices.ContainsFunc(dropped, func(v *Version) bool { return v.Number == n })
		if !old && !strings.HasSuffix(e.Name(), disk.Staged) {
			continue
		}
		if err := s.Wipe(s.File(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// wipe removes every version and both copies, even damaged ones.
func (s versionStore) wipe() error {
	entries, err := s.entries()
	faults := []error{err, s.Wipe(s.keyPath), s.Wipe(s.certPath)}
	for _, e := range entries {
		faults = append(faults, s.Wipe(s.File(e.Name())))
	}
	return errors.Join(faults...)
}
