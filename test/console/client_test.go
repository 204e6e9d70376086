package console

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// client is a browser without a page: its cookies and connections.
type client struct {
	t *testing.T
	*http.Client
}

// login logs in to the console.
func login(t *testing.T) client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := client{t, &http.Client{Jar: jar, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	t.Cleanup(c.CloseIdleConnections)
	res, err := c.PostForm(address("/login"), url.Values{"token": {stack.Getenv("GPUAAS_API_TOKEN")}})
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }() // it is read
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", body)
	return c
}

// get returns the status and the content of a page.
func (c client) get(ctx context.Context, path string, header ...string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address(path), http.NoBody)
	if err != nil {
		return 0, "", err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }() // it is read
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// page returns the content of a page.
func (c client) page(path string) string {
	c.t.Helper()
	status, body, err := c.get(c.t.Context(), path)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%s: %s", path, body)
	return body
}
