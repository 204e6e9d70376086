package nodeapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/nodeapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/test/harness"
)

// The number of recorded rows depends neither on the number of requests nor on that of
// their networks, and the rows count every request.
func TestRefusalsAreAggregated(t *testing.T) {
	recorded := make(chan []nodeapi.RefusedRequests, 2)
	_, api := newAPI(t, &fakeStore{refused: func(r []nodeapi.RefusedRequests) { recorded <- r }}, func(*nodeapi.Config) {})
	handler := api.Handler()
	ask := func(remote string) {
		r := httptest.NewRequest(http.MethodPost, "/internal/v1/nodes/"+schema.NewID()+"/enroll", strings.NewReader(`{"token":"x"}`))
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, http.StatusUnauthorized, w.Code, w.Body.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	ask("[2001:db8:0:1::5]:443")
	ask("[2001:db8:0:1:ffff::6]:443")
	go func() { ended <- api.Run(ctx) }()
	first := harness.Receive(t, "the first refusals are recorded at once", recorded)
	require.Len(t, first, 1)
	assert.Equal(t, "2001:db8:0:1::/64", first[0].Network)
	assert.Equal(t, int64(2), first[0].Requests)
	assert.Equal(t, "2001:db8:0:1::5", first[0].RemoteAddr)

	const networks, requests = 200, 3
	for i := range networks * requests {
		ask(fmt.Sprintf("[::ffff:10.1.%d.%d]:443", i%networks, i/networks))
	}
	cancel()
	require.NoError(t, harness.Receive(t, "the rest is recorded at the end", ended))
	rest := <-recorded
	assert.Len(t, rest, 21)
	sum, names := int64(0), []string{}
	for _, r := range rest {
		sum, names = sum+r.Requests, append(names, r.Network)
	}
	assert.Equal(t, int64(networks*requests), sum)
	assert.Contains(t, names, "10.1.0.0/24")
	assert.Contains(t, names, "other networks")
}
