package vault

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Vault may have done what a failed request asked for: a request that creates an object is not
// sent again, any other is.
func TestCreationsAreSentOnce(t *testing.T) {
	var requests atomic.Int32
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(failing.Close)
	c, err := dial(failing.URL)
	require.NoError(t, err)
	for r, want := range map[*request]int32{
		new(create("transit/keys/k/rotate", nil)):        1,
		new(put("transit/keys/k/config", nil)):           2,
		new(get("transit/keys/k")):                       2,
		new(create("pki-node/root/generate/x", nil)):     1,
		new(put("auth/approle/login", map[string]any{})): 2,
	} {
		requests.Store(0)
		_, err := c.send(t.Context(), *r)
		require.Error(t, err)
		require.Equal(t, want, requests.Load(), r.path)
	}
}
