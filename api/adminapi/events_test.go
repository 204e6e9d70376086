package adminapi_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stop ends the open streams, and no new one is opened.
func TestEventsEndAtTheStop(t *testing.T) {
	api := newBackend().api()
	server := httptest.NewServer(api.Handler())
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- api.Run(ctx) }()
	open := func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/admin/events", nil)
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	lines := bufio.NewScanner(open().Body) //nolint:bodyclose // the cleanup closes it
	require.True(t, lines.Scan())
	assert.Equal(t, "retry: 2000", lines.Text())
	require.True(t, lines.Scan())
	assert.Equal(t, ": connected", lines.Text())
	stop()
	for lines.Scan() {
		assert.Empty(t, lines.Text())
	}
	require.NoError(t, lines.Err(), "the stream ended regularly")
	require.NoError(t, <-stopped)
	assert.Equal(t, http.StatusServiceUnavailable, open().StatusCode) //nolint:bodyclose // the cleanup closes it
}
