package adminapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
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
}

// Authenticator identifies the subject of a request. It rejects with
// KindUnauthenticated.
type Authenticator interface {
	Authenticate(r *http.Request) (Subject, error)
}

// Tokens authenticates bearer tokens: one from the configuration, whose role is
// admin, and those of a file that is read again when it changes. It is safe for
// concurrent use.
type Tokens struct {
	single  tokenEntry
	path    string
	now     func() time.Time
	mu      sync.Mutex
	checked time.Time
	entries []tokenEntry
	fault   error
}

type tokenEntry struct {
	subject Subject
	hash    [sha256.Size]byte
}

// tokensCheck is the longest time between two readings of the file: a revoked
// token is rejected after that time at the latest.
const tokensCheck = time.Second

// NewTokens returns an Authenticator for the token with this SHA-256, used by
// actor, and for the tokens of the file at path. Either is optional: a zero hash,
// an empty path. A file that cannot be read is an error here; later the last valid
// content remains in use.
func NewTokens(hash [sha256.Size]byte, actor, path string) (*Tokens, error) {
	t := &Tokens{path: path, now: time.Now}
	if hash != [sha256.Size]byte{} {
		t.single = tokenEntry{Subject{actor, trust.RoleAdmin}, hash}
	}
	t.read()
	return t, t.fault
}

// Authenticate implements Authenticator. Both sides are hashed and every entry
// is compared, so that the duration reveals nothing about the tokens.
func (t *Tokens) Authenticate(r *http.Request) (Subject, error) {
	values := r.Header.Values("Authorization")
	scheme, token, ok := strings.Cut(strings.Join(values, ","), " ")
	if !ok || len(values) != 1 || !strings.EqualFold(scheme, "Bearer") {
		return Subject{}, schema.NewError(schema.KindUnauthenticated, "this endpoint needs a bearer token").WithReason("no_token")
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	var found Subject
	for _, e := range t.current() {
		if subtle.ConstantTimeCompare(sum[:], e.hash[:]) == 1 {
			found = e.subject
		}
	}
	if found.Name == "" {
		return Subject{}, schema.NewError(schema.KindUnauthenticated, "the bearer token is not accepted").WithReason("bad_token")
	}
	return found, nil
}

// Fault is the reason why the file's last version is not in use, nil if it is.
func (t *Tokens) Fault() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// current returns the tokens in use. A changed file takes effect within
// tokensCheck.
func (t *Tokens) current() []tokenEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now().Sub(t.checked) >= tokensCheck {
		t.read()
	}
	if t.single.subject.Name == "" {
		return t.entries
	}
	return append(slices.Clone(t.entries), t.single)
}

// read reads the file. The caller holds the lock, or is the only user of t.
func (t *Tokens) read() {
	if t.path == "" {
		return
	}
	t.checked = t.now()
	text, err := os.ReadFile(t.path)
	if err != nil {
		t.fault = fmt.Errorf("reading the admin tokens: %w", err)
		return
	}
	entries, err := parseTokens(string(text))
	if t.fault = err; err == nil {
		t.entries = entries
	}
}

// parseTokens reads lines of NAME ROLE SHA256, the last in hex. Empty lines and
// lines that begin with # are skipped.
func parseTokens(text string) ([]tokenEntry, error) {
	var out []tokenEntry
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("admin tokens, line %d: want NAME ROLE SHA256", n)
		}
		hash, err := hex.DecodeString(words[2])
		role := Role(words[1])
		switch {
		case !trust.ValidSubject(words[0]):
			return nil, fmt.Errorf("admin tokens, line %d: the name must be at most 64 of a-z A-Z 0-9 . _ - @", n)
		case !slices.Contains(trust.Roles(), role):
			return nil, fmt.Errorf("admin tokens, line %d: the role must be one of %s", n, joined(trust.Roles()))
		case err != nil || len(hash) != sha256.Size:
			return nil, fmt.Errorf("admin tokens, line %d: the hash must be a SHA-256 in hex", n)
		}
		out = append(out, tokenEntry{Subject{words[0], role}, [sha256.Size]byte(hash)})
	}
	return out, nil
}
