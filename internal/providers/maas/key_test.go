package maas_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// replacedKey is an API key that MAAS has replaced.
const replacedKey = "consumer-key-before:token-key-before:secret-part-before"

// stored is a place that has API keys: one for each read, the last one for all further reads. An
// empty one is an unavailable Vault.
type stored struct {
	keys  []string
	reads int
}

func (s *stored) read(context.Context) (schema.Secret, error) {
	key := s.keys[min(s.reads, len(s.keys)-1)]
	s.reads++
	if key == "" {
		return schema.Secret{}, schema.NewError(schema.KindServiceUnavailable, "Vault is sealed").WithReason("vault_sealed")
	}
	return schema.NewSecret(key), nil
}

// provider returns an adapter that reads its key from the place.
func (s *stored) provider(t *testing.T, server *maastest.Server, keep time.Duration) *maas.Provider {
	t.Helper()
	config := settings(server)
	config.KeepToken = keep
	return s.open(t, config)
}

// providerAt returns an adapter that reads its key for each request, of a server that responds in one way.
func (s *stored) providerAt(t *testing.T, respond func(http.ResponseWriter)) *maas.Provider {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { respond(w) }))
	t.Cleanup(server.Close)
	return s.open(t, maas.Settings{BaseURL: server.URL, Installation: "test", KeepToken: time.Nanosecond})
}

func (s *stored) open(t *testing.T, config maas.Settings) *maas.Provider {
	t.Helper()
	config.Token, config.ReadToken = "", s.read
	source, err := maas.New(config)
	require.NoError(t, err)
	require.Zero(t, s.reads, "a start needs no key")
	p, ok := source.Provider.(*maas.Provider)
	require.True(t, ok)
	return p
}

// TestReplacedKey: a key that MAAS rejects is read again, and the request, also one that changes
// something, is repeated with the new key. Further calls use that one.
func TestReplacedKey(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	place := &stored{keys: []string{replacedKey, server.Key}}
	p := place.provider(t, server, 0)
	create(t, p, spec(1))
	await(t, p, spec(1), machine.Running)
	require.Equal(t, 2, place.reads)
	require.Len(t, server.Used(), 1)
	require.NoError(t, p.Power(t.Context(), ref(spec(1)), machine.PowerOff), "with a form")
}

// TestRejectedKey: a key that stays rejected is an error without a part of it, in each call.
func TestRejectedKey(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	place := &stored{keys: []string{replacedKey}}
	p := place.provider(t, server, 0)
	for call := range 2 {
		_, err := p.Create(t.Context(), spec(1), boot)
		require.True(t, machine.Is(err, machine.ReasonAuth), "%v", err)
		for _, part := range append(strings.Split(replacedKey, ":"), strings.Split(server.Key, ":")...) {
			require.NotContains(t, err.Error(), part)
		}
		require.Equal(t, 2+call, place.reads)
	}
	require.Empty(t, server.Used())
}

// TestUnchangedKey: a key that MAAS rejected and that is still the one in the place is not sent again.
func TestUnchangedKey(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	place := &stored{keys: []string{replacedKey}}
	p := place.providerAt(t, func(w http.ResponseWriter) {
		requests.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	})
	_, err := p.List(t.Context())
	require.True(t, machine.Is(err, machine.ReasonAuth), "%v", err)
	require.Equal(t, 2, place.reads)
	require.EqualValues(t, 1, requests.Load())
}

// TestEarlierKeysStayHidden: the text of a server may quote a key that was replaced. The newest eight
// are hidden, however often the last one is read.
func TestEarlierKeysStayHidden(t *testing.T) {
	t.Parallel()
	var quoted atomic.Pointer[string]
	place := &stored{}
	for i := range 8 {
		place.keys = append(place.keys, fmt.Sprintf("consumer-%d:token-%[1]d:secret-of-%[1]d", i))
	}
	place.keys[4] = "consumer:token-4:secret-of-4" // starts other parts
	p := place.providerAt(t, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, "no key is like %s", *quoted.Load())
	})
	for _, key := range append(slices.Clone(place.keys), place.keys...) {
		quoted.Store(&key)
		_, err := p.List(t.Context())
		require.ErrorContains(t, err, "no key is like [hidden]:[hidden]:[hidden]", key)
	}
}

// TestValidToken: white space around a key is not a part of one.
func TestValidToken(t *testing.T) {
	t.Parallel()
	require.True(t, maas.ValidToken("consumer:token:secret"))
	for _, invalid := range []string{"", "consumer:token", "consumer::secret", "a:b:c:d", " consumer:token:secret", "consumer:token:secret\n"} {
		require.False(t, maas.ValidToken(invalid), "%q", invalid)
	}
}

// TestKeyIsKeptBriefly: a key is read again after its time, by default a minute, and not before.
func TestKeyIsKeptBriefly(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	for keep, reads := range map[time.Duration]int{0: 1, time.Hour: 1, time.Nanosecond: 3} {
		place := &stored{keys: []string{server.Key}}
		p := place.provider(t, server, keep)
		for range 3 { // each is one request
			_, err := p.List(t.Context())
			require.NoError(t, err)
		}
		require.GreaterOrEqual(t, place.reads, reads)
		require.Equal(t, reads == 1, place.reads == 1)
	}
}

// TestNoKey: without a key, the error of the place is that of the call, and MAAS receives nothing.
func TestNoKey(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string][]string{"at first": {""}, "after a rejection": {replacedKey, ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			p := (&stored{keys: keys}).provider(t, server, 0)
			_, err := p.Create(t.Context(), spec(1), boot)
			require.Equal(t, schema.KindServiceUnavailable, schema.KindOf(err))
			require.Equal(t, "vault_sealed", schema.AsError(err).Reason)
			require.Empty(t, server.Used())
		})
	}
	malformed := (&stored{keys: []string{"no-key"}}).provider(t, newServer(t), 0)
	_, err := malformed.List(t.Context())
	require.True(t, machine.Is(err, machine.ReasonAuth), "%v", err)
	require.NotContains(t, err.Error(), "no-key")
}
