package adminapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRegisterRefusesInvalidHosts(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"", "gpu 1", "-gpu", "0198f000-0000-7000-8000-000000000017", "::1%\necho PWNED #", "fe80::1%$(id)",
		"fe80::1%eth0", "::1%" + strings.Repeat("a", 300), "gpu-1;id", "`id`", "10.0.0.999"} {
		body, err := json.Marshal(map[string]string{"host": host, "sku": "h100", "region_code": "r1"})
		require.NoError(t, err)
		w := newBackend().request(t, http.MethodPost, "/nodes", string(body))
		assert.Equal(t, http.StatusBadRequest, w.Code, host)
		assert.Contains(t, w.Body.String(), "bad_host", host)
	}
}

// A provider without an adapter is a mistake of the caller: a retry does not help.
func TestRegisterRefusesUnknownProviders(t *testing.T) {
	t.Parallel()
	w := newBackend().request(t, http.MethodPost, "/nodes", `{"host":"gpu-9","sku":"h100","region_code":"r1","onboarding_mode":"foo"}`)
	assert.Equal(t, http.StatusBadRequest, w.Code)
	e := refusal(t, w)
	assert.Equal(t, "no_adapter", e.Reason)
	assert.Contains(t, e.Message, `onboarding_mode must be manual: no adapter for "foo" is configured`)
}
