package maas_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/maas"
	"github.com/gpuaas/gpuaas/internal/providers/maas/maastest"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/test/harness"
)

// secretsIn lists the parts of the key and the user data that a text has.
func secretsIn(s *maastest.Server, text string) (found []string) {
	for _, secret := range append(strings.Split(s.Key, ":"), "one-time-reference", "b25lLXRpbWU") {
		if strings.Contains(text, secret) {
			found = append(found, secret)
		}
	}
	return found
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	source, err := maas.New(maas.Settings{BaseURL: server.URL + "/MAAS/api/2.0/", Token: "consumer:token:se+cret", Installation: "test"})
	require.NoError(t, err)
	_, err = source.Provider.List(t.Context())
	require.True(t, machine.Is(err, machine.ReasonAuth), "%v", err)
	header := got.Get("Authorization")
	for _, part := range []string{`oauth_consumer_key="consumer"`, `oauth_token="token"`, `oauth_signature_method="PLAINTEXT"`, `oauth_signature="%26se%252Bcret"`, `oauth_version="1.0"`, "oauth_nonce=", "oauth_timestamp="} {
		assert.Contains(t, header, part)
	}
}

func TestWrongKey(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	for i := range 3 {
		key := strings.Split(server.Key, ":")
		key[i] = "wrong-key"
		config := settings(server)
		config.Token = strings.Join(key, ":")
		source, err := maas.New(config)
		require.NoError(t, err)
		_, err = source.Provider.Create(t.Context(), spec(1), boot)
		require.True(t, machine.Is(err, machine.ReasonAuth), "%v", err)
		assert.Empty(t, secretsIn(server, err.Error()))
	}
	require.Empty(t, server.Used())
}

// TestHostile: no response of a hostile or broken server to any request of any call panics, is
// taken for a missing machine, or gets a secret into an error.
func TestHostile(t *testing.T) {
	t.Parallel()
	for _, fault := range []maastest.Fault{maastest.Echo, maastest.Huge, maastest.WrongTypes, maastest.Garbage, maastest.Redirect, maastest.Internal, maastest.BadGateway, maastest.Forbidden} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			p := open(t, server).Provider
			create(t, p, spec(1))
			for _, op := range []string{"list", "whoami", "allocate", "set_workload_annotations", "deploy", "query", "release", "power_off"} {
				server.Inject(fault, 1, op)
				_, createErr := p.Create(t.Context(), spec(2), boot)
				_, describeErr := p.Describe(t.Context(), ref(spec(1)))
				_, consoleErr := p.Console(t.Context(), ref(spec(1)))
				errs := []error{createErr, describeErr, consoleErr, p.Power(t.Context(), ref(spec(1)), machine.PowerReset), p.Delete(t.Context(), ref(spec(2)))}
				server.Clear()
				for _, err := range errs {
					if err != nil {
						assert.Empty(t, secretsIn(server, err.Error()), "%s", op)
						assert.False(t, machine.Is(err, machine.ReasonMissing), "%s: %v", op, err)
						assert.Less(t, len(err.Error()), 1000)
					}
				}
				deleteUntilMissing(t, server, spec(2))
				require.Eventually(t, func() bool { return p.Power(t.Context(), ref(spec(1)), machine.PowerOn) == nil }, harness.Timeout, 5*time.Millisecond)
				await(t, p, spec(1), machine.Running)
			}
		})
	}
}

// deleteUntilMissing deletes the machine of a spec, which may be half created.
func deleteUntilMissing(t *testing.T, server *maastest.Server, s machine.Spec) {
	t.Helper()
	p := open(t, server).Provider
	require.Eventually(t, func() bool {
		_ = p.Delete(t.Context(), ref(s)) // Describe decides
		_, err := p.Describe(t.Context(), ref(s))
		return machine.Is(err, machine.ReasonMissing)
	}, harness.Timeout, 5*time.Millisecond)
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	followed := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(server.Close)
	source, err := maas.New(maas.Settings{BaseURL: server.URL, Token: "consumer:token:secret", Installation: "test"})
	require.NoError(t, err)
	_, err = source.Provider.List(t.Context())
	require.True(t, machine.Is(err, machine.ReasonRejected), "%v", err)
	require.False(t, followed)
}

// TestUnreachable: without a connection nothing was written, so that the failure is certain.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, address := range []string{untrusted.URL, closed.URL} {
		source, err := maas.New(maas.Settings{BaseURL: address, Token: "consumer:token:secret", Installation: "test"})
		require.NoError(t, err)
		_, err = source.Provider.Create(t.Context(), spec(1), boot)
		require.Error(t, err)
		source, err = maas.New(maas.Settings{BaseURL: address, Token: "consumer:token:secret", Installation: "test", Zones: []string{"zone-1"}, Images: []string{"ubuntu/noble"}})
		require.NoError(t, err)
		s := spec(1)
		s.Type = ""
		_, err = source.Provider.Create(t.Context(), s, boot)
		require.True(t, machine.Is(err, machine.ReasonUnavailable), "%v", err)
		require.True(t, machine.Is(source.Provider.Delete(t.Context(), ref(s)), machine.ReasonUnavailable))
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	config := settings(server)
	config.Timeout = 300 * time.Millisecond
	source, err := maas.New(config)
	require.NoError(t, err)
	patient := open(t, server).Provider
	create(t, patient, spec(1))
	server.Inject(maastest.Slow, 1, "list")
	_, err = source.Provider.Describe(t.Context(), ref(spec(1)))
	require.True(t, machine.Is(err, machine.ReasonUnavailable), "%v", err)
	require.ErrorContains(t, err, "did not respond in time")
	server.Inject(maastest.Slow, 1, "release")
	harness.Eventually(t, "the release is sent, after requests that a slow machine may not answer in time", func() bool {
		err = source.Provider.Delete(t.Context(), ref(spec(1)))
		return !machine.Is(err, machine.ReasonUnavailable)
	})
	require.True(t, machine.Is(err, machine.ReasonAmbiguous), "%v", err)
	remove(t, server, patient, spec(1))
}

func TestSettings(t *testing.T) {
	t.Parallel()
	valid := maas.Settings{BaseURL: "https://maas.test:5443/MAAS", Token: "consumer:token:topsecret", Installation: "test"}
	_, err := maas.New(valid)
	require.NoError(t, err)
	for name, change := range map[string]func(s *maas.Settings){
		"MAAS_API_BASE_URL must":   func(s *maas.Settings) { s.BaseURL = "maas.test" },
		"MAAS_API_BASE_URL must ":  func(s *maas.Settings) { s.BaseURL = "https://user:topsecret@maas.test" },
		"MAAS_API_TOKEN must":      func(s *maas.Settings) { s.Token = "token:topsecret" },
		"MAAS_API_TOKEN must ":     func(s *maas.Settings) { s.Token = "::topsecret" },
		"MAAS_API_TIMEOUT_MS must": func(s *maas.Settings) { s.Timeout = time.Hour },
		"erase option":             func(s *maas.Settings) { s.Erase = "burn" },
		"installation":             func(s *maas.Settings) { s.Installation = "a/b" },
	} {
		s := valid
		change(&s)
		_, err := maas.New(s)
		require.ErrorContains(t, err, strings.TrimSpace(name))
		require.NotContains(t, err.Error(), "topsecret")
	}
	source, err := maas.New(maas.Settings{})
	require.NoError(t, err)
	require.NotEmpty(t, source.Disabled)
	_, err = source.Provider.Create(t.Context(), spec(1), boot)
	require.True(t, machine.Is(err, machine.ReasonDisabled), "%v", err)
}

// TestPhases checks the phase of each status of MAAS.
func TestPhases(t *testing.T) {
	t.Parallel()
	phases := map[int]machine.Phase{1: machine.Failed, 2: machine.Failed, 3: machine.Failed, 5: machine.Creating, 6: machine.Running, 7: machine.Failed, 8: machine.Failed,
		9: machine.Creating, 10: machine.Creating, 11: machine.Failed, 12: machine.Deleting, 13: machine.Failed, 14: machine.Deleting, 15: machine.Failed,
		16: machine.Stopped, 17: machine.Stopped, 18: machine.Failed, 19: machine.Stopped, 20: machine.Failed, 21: machine.Running, 22: machine.Failed}
	for status := range 23 {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `[{"system_id":"abc","owner":"gpuaas","status":%d,"status_name":"Name","status_message":"why\u001b[2J","power_state":"on",
				"workload_annotations":{"gpuaas-owner":"test","gpuaas-instance":%q}}]`, status, spec(1).InstanceID) // the client checks
		}))
		source, err := maas.New(maas.Settings{BaseURL: server.URL, Token: "consumer:token:secret", Installation: "test"})
		require.NoError(t, err)
		m, err := source.Provider.Describe(t.Context(), ref(spec(1)))
		if want, ok := phases[status]; ok {
			require.NoError(t, err)
			assert.Equal(t, want, m.Phase, "status %d", status)
			assert.Equal(t, "Name: why?[2J", m.Detail)
		} else {
			require.Error(t, err, "status %d", status) // new and ready: no instance's
		}
		server.Close()
	}
}
