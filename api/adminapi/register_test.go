package adminapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRegisterRefusesInvalidHosts(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"", "gpu 1", "-gpu", "0198f000-0000-7000-8000-000000000017"} {
		w := newBackend().request(t, http.MethodPost, "/nodes", `{"host":"`+host+`","sku":"h100","region_code":"r1"}`)
		assert.Equal(t, http.StatusBadRequest, w.Code, host)
		assert.Contains(t, w.Body.String(), "bad_host", host)
	}
}
