package adminapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/trust"
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

// A row that is older than the check of host names gets no token and no script, and
// nothing changes. The error names the node by its id.
func TestStoredHostsAreChecked(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"::1%\necho PWNED #", "gpu-1$(id)", ""} {
		for _, verb := range []string{"bootstrap-script", "reissue-enrollment", "enroll"} {
			d := newBackend()
			d.node.Host, d.node.State = host, lifecycle.NodeRegistered
			d.pack = &trust.AgentPackage{PullDeliveryMode: adminapi.DeliverArchive}
			w := d.post(t, verb, "")
			assert.Equal(t, http.StatusBadRequest, w.Code, verb)
			e := refusal(t, w)
			assert.Equal(t, "bad_host", e.Reason)
			assert.Equal(t, "remove the node by its ID, then register it with a valid host", e.Next)
			assert.Contains(t, e.Message, d.node.ID)
			assert.NotContains(t, w.Body.String(), "PWNED")
			assert.Empty(t, d.steps, verb)
		}
	}
}

// A setting or a certificate that would not be a plain value in a script is not issued.
func TestBundlesAreChecked(t *testing.T) {
	t.Parallel()
	for _, spoil := range []func(*backend){
		func(d *backend) { d.url = "https://api$(id)" }, func(d *backend) { d.ca = "PEM\x00" },
		func(d *backend) { d.pack = &trust.AgentPackage{InstallRoot: "/opt/x|e"} },
	} {
		d := newBackend()
		spoil(d)
		w := d.post(t, "enroll", "")
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		assert.Equal(t, []string{"trust"}, d.steps)
	}
}
