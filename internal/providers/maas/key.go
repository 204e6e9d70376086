package maas

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dghubble/oauth1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// maxHidden is how many of the newest keys are hidden in texts of the server: a text may quote a key
// that was replaced.
const maxHidden = 8

// keys has the API key that requests are signed with.
type keys struct {
	transport http.RoundTripper
	// read reads the key, which is used for keep; nil if the key never changes.
	read func(context.Context) (schema.Secret, error)
	keep time.Duration
	held atomic.Pointer[apiKey] // nil before the first read
	// using keeps concurrent reads from losing a key that must stay hidden.
	using sync.Mutex
}

// apiKey is an API key with the client that signs with it.
type apiKey struct {
	token string
	since time.Time
	http  *http.Client
	// newest are this key and those used before it, at most maxHidden. hide replaces their parts in texts of
	// the server.
	newest []string
	hide   *strings.Replacer
}

// plaintext signs with PLAINTEXT (RFC 5849 section 3.4.4), the only method that MAAS accepts.
// MAAS issues no consumer secret.
type plaintext struct{}

func (plaintext) Name() string { return "PLAINTEXT" }

func (plaintext) Sign(tokenSecret, _ string) (string, error) {
	return "&" + oauth1.PercentEncode(tokenSecret), nil
}

// key returns the key, which it reads if the one that it has is too old.
func (s *keys) key(ctx context.Context) (*apiKey, error) {
	if k := s.held.Load(); k != nil && (s.read == nil || time.Since(k.since) < s.keep) {
		return k, nil
	}
	return s.readKey(ctx)
}

// readKey reads the key. Concurrent calls each read it.
func (s *keys) readKey(ctx context.Context) (*apiKey, error) {
	token, err := s.read(ctx)
	if err == nil && !ValidToken(token.Reveal()) {
		err = machine.Errorf(machine.ReasonAuth, "the API key of MAAS does not have the form consumer:token:secret")
	}
	if err != nil {
		return nil, err
	}
	return s.use(token.Reveal()), nil
}

// use makes a valid key the one that requests are signed with.
func (s *keys) use(token string) *apiKey {
	parts := strings.Split(token, ":")
	config := &oauth1.Config{ConsumerKey: parts[0], Signer: plaintext{}}
	k := &apiKey{token: token, since: time.Now(),
		http: config.Client(context.WithValue(context.Background(), oauth1.HTTPClient, &http.Client{Transport: s.transport}), oauth1.NewToken(parts[1], parts[2]))}
	// A redirect is an error: it could lead the credentials to another host, and a POST would become a GET.
	k.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.using.Lock()
	defer s.using.Unlock()
	k.newest = []string{token}
	if before := s.held.Load(); before != nil {
		k.newest = append(k.newest, slices.DeleteFunc(slices.Clone(before.newest), func(t string) bool { return t == token })...)
		k.newest = k.newest[:min(len(k.newest), maxHidden)]
	}
	k.hide = hiding(k.newest)
	s.held.Store(k)
	return k
}

// hiding replaces the parts of keys. A part that starts with another one is replaced as a whole.
func hiding(tokens []string) *strings.Replacer {
	parts := strings.Split(strings.Join(tokens, ":"), ":")
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, part := range parts {
		if len(part) >= 4 {
			pairs = append(pairs, part, "[hidden]")
		}
	}
	return strings.NewReplacer(pairs...)
}

// line returns a text of the server as one line without the API keys. The server sent the text, so there
// is a key.
func (s *keys) line(says string) string {
	return text.Line(strings.TrimSpace(s.held.Load().hide.Replace(says)), maxText)
}
