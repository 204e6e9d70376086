package adminapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Role is what a subject may do.
type Role = trust.Role

// Subject is an authenticated caller of the admin API.
type Subject struct {
	Name string
	Role Role
	// Via is the interface that the audit names for the caller; empty for this API.
	Via string
}

// Authenticator identifies the subject of a request. It rejects with
// KindUnauthenticated.
type Authenticator interface {
	Authenticate(r *http.Request) (Subject, error)
}

// Tokens authenticates bearer tokens: one from the configuration, whose role is
// admin, and those of a file. Run reads the file again while the process runs. It is
// safe for concurrent use.
type Tokens struct {
	single  tokenEntry
	path    string
	every   time.Duration
	current atomic.Pointer[tokenSet]
	// last is the content of the last reading. Only Run uses it.
	last []byte
}

// tokenSet is a version of the tokens in use, and why the file's newest version is
// not, if it is not.
type tokenSet struct {
	entries []tokenEntry
	fault   error
}

type tokenEntry struct {
	subject Subject
	hash    [sha256.Size]byte
}

// Limits of the tokens file.
const (
	// tokensEvery is the time between two readings. A changed file takes effect when
	// two readings in a row return the same content.
	tokensEvery   = time.Second
	maxTokensFile = 1 << 20
	// writableByOthers are the permission bits that the file must not have.
	writableByOthers = 0o022
)

// NewTokens returns an Authenticator for the token with this SHA-256, used by
// actor, and for the tokens of the file at path. Either is optional: a zero hash,
// an empty path. A file that is not valid is an error of KindInvalidRequest.
func NewTokens(hash [sha256.Size]byte, actor, path string) (*Tokens, error) {
	t := &Tokens{path: path, every: tokensEvery}
	if hash != [sha256.Size]byte{} {
		t.single = tokenEntry{Subject{Name: actor, Role: trust.RoleAdmin}, hash}
	}
	set := &tokenSet{}
	if path != "" {
		if t.last, set.fault = readTokensFile(path); set.fault == nil {
			set.entries, set.fault = t.parse(t.last)
		}
	}
	t.current.Store(set)
	return t, set.fault
}

// Run reads the file again until ctx ends. It calls changed with the reason why the
// file's newest version is not in use, and with nil when it is in use again.
func (t *Tokens) Run(ctx context.Context, changed func(fault error)) error {
	if t.path == "" {
		return nil
	}
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			before := t.Fault()
			t.read()
			if now := t.Fault(); fmt.Sprint(now) != fmt.Sprint(before) {
				changed(now)
			}
		}
	}
}

// read replaces the tokens in use by those of the file. An invalid file replaces
// nothing. Neither does a file that a writer may not have finished: one that changed
// since the last reading. A file without tokens revokes all of them.
func (t *Tokens) read() {
	text, err := readTokensFile(t.path)
	entries := t.current.Load().entries
	if err == nil && !bytes.Equal(text, t.last) {
		t.last = text
		return
	}
	if err == nil {
		var parsed []tokenEntry
		if parsed, err = t.parse(text); err == nil {
			entries = parsed
		}
	}
	t.current.Store(&tokenSet{entries, err})
}

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(r *http.Request) (Subject, error) {
	values := r.Header.Values("Authorization")
	scheme, token, ok := strings.Cut(strings.Join(values, ","), " ")
	if !ok || len(values) != 1 || !strings.EqualFold(scheme, "Bearer") {
		return Subject{}, schema.NewError(schema.KindUnauthenticated, "this endpoint needs a bearer token").WithReason("no_token")
	}
	found, ok := t.Subject(sha256.Sum256([]byte(strings.TrimSpace(token))))
	if !ok {
		return Subject{}, schema.NewError(schema.KindUnauthenticated, "the bearer token is not accepted").WithReason("bad_token")
	}
	return found, nil
}

// Subject returns the subject of the token with this SHA-256. ok is false if the token is not
// accepted. Every entry is compared, so that the duration reveals nothing about the tokens.
func (t *Tokens) Subject(sum [sha256.Size]byte) (found Subject, ok bool) {
	compare := func(e tokenEntry) {
		if subtle.ConstantTimeCompare(sum[:], e.hash[:]) == 1 {
			found = e.subject
		}
	}
	compare(t.single)
	for _, e := range t.current.Load().entries {
		compare(e)
	}
	return found, found.Name != ""
}

// Fault is the reason why the file's newest version is not in use, nil if it is.
func (t *Tokens) Fault() error { return t.current.Load().fault }

func badTokens(format string, args ...any) error {
	return schema.NewError(schema.KindInvalidRequest, format, args...)
}

// readTokensFile reads a regular file that only its owner may write, who must be root
// or the user of this process. The open does not block on a named pipe.
func readTokensFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, badTokens("%v", err)
	}
	defer func() { _ = f.Close() }() // it is open for reading only
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, badTokens("%v", err)
	case !info.Mode().IsRegular():
		return nil, badTokens("%s is not a regular file", path)
	case info.Mode().Perm()&writableByOthers != 0:
		return nil, badTokens("%s has mode %#o, so others than its owner may change it; run: chmod go-w %[1]s", path, info.Mode().Perm())
	case !trustedOwner(info, os.Geteuid()):
		return nil, badTokens("%s belongs to another user, who may change it; run: chown root %[1]s", path)
	case info.Size() > maxTokensFile:
		return nil, badTokens("%s has more than %d bytes", path, maxTokensFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTokensFile))
	if err != nil {
		return nil, badTokens("%v", err)
	}
	return text, nil
}

// trustedOwner reports whether a file belongs to root or to the user with this id.
func trustedOwner(info os.FileInfo, self int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (stat.Uid == 0 || int(stat.Uid) == self)
}

// parse parses lines of NAME ROLE SHA256, the last in hex. Empty lines and lines that
// begin with # are skipped.
func (t *Tokens) parse(text []byte) ([]tokenEntry, error) {
	var out []tokenEntry
	owners := map[[sha256.Size]byte]string{t.single.hash: t.single.subject.Name}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		e, err := parseToken(words)
		if err != nil {
			return nil, badTokens("line %d: %v", n, err)
		}
		if owner, twice := owners[e.hash]; twice {
			return nil, badTokens("line %d: the token of %s is already that of %s", n, e.subject.Name, owner)
		}
		owners[e.hash] = e.subject.Name
		out = append(out, e)
	}
	return out, nil
}

func parseToken(words []string) (tokenEntry, error) {
	if len(words) != 3 {
		return tokenEntry{}, errors.New("it must be NAME ROLE SHA256")
	}
	hash, err := hex.DecodeString(words[2])
	role := Role(words[1])
	switch {
	case !trust.ValidSubject(words[0]):
		return tokenEntry{}, errors.New("the name must be at most 64 of a-z A-Z 0-9 . _ - @")
	case !slices.Contains(trust.Roles(), role):
		return tokenEntry{}, fmt.Errorf("the role must be one of %s", joined(trust.Roles()))
	case err != nil || len(hash) != sha256.Size:
		return tokenEntry{}, errors.New("the hash must be a SHA-256 in hex")
	}
	return tokenEntry{Subject{Name: words[0], Role: role}, [sha256.Size]byte(hash)}, nil
}
