package maas

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dghubble/oauth1"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// keys has the API key that requests are signed with.
type keys struct {
	transport http.RoundTripper
	// read reads the key, which is used for keep; nil if the key never changes.
	read func(context.Context) (schema.Secret, error)
	keep time.Duration
	held atomic.Pointer[apiKey] // nil before the first read
}

// apiKey is an API key with the client that signs with it.
type apiKey struct {
	token string
	since time.Time
	http  *http.Client
	// pairs replace the parts of this key in texts of the server, and hide also those of the one before.
	pairs []string
	hide  *strings.Replacer
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
	for _, part := range parts {
		if len(part) >= 4 {
			k.pairs = append(k.pairs, part, "[hidden]")
		}
	}
	hidden := k.pairs
	if before := s.held.Load(); before != nil {
		hidden = slices.Concat(k.pairs, before.pairs)
	}
	k.hide = strings.NewReplacer(hidden...)
	s.held.Store(k)
	return k
}

// line returns a text of the server as one line without the API key.
func (k *apiKey) line(s string) string {
	return text.Line(strings.TrimSpace(k.hide.Replace(s)), maxText)
}

// line is that of the newest key. The server sent the text, so there is one.
func (s *keys) line(text string) string { return s.held.Load().line(text) }
