package console

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
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
	return loginAt(t, address(""), stack.Getenv("GPUAAS_API_TOKEN"))
}

// loginAt logs in to the console at an address with a token.
func loginAt(t *testing.T, at, token string) client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := client{t, &http.Client{Jar: jar, Transport: &http.Transport{MaxIdleConnsPerHost: manyTabs}}}
	t.Cleanup(c.CloseIdleConnections)
	status, body := c.send(at+"/login", url.Values{"token": {token}})
	require.Equal(t, http.StatusOK, status, body)
	return c
}

// send sends a form, or reads a page if the form is nil, and returns the status and the content after
// redirects.
func (c client) send(address string, form url.Values) (int, string) {
	method, content := http.MethodGet, io.Reader(http.NoBody)
	if form != nil {
		method, content = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, address, content)
	require.NoError(c.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	res, err := c.Do(req)
	require.NoError(c.t, err)
	defer func() { _ = res.Body.Close() }() // it is read
	body, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, string(body)
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

// follow opens a stream of the view and calls notice at each change, until ctx or the stream ends. It
// calls opened first.
func (c client) follow(ctx context.Context, view, revision string, opened, notice func()) error {
	q := url.Values{"view": {view}, "rev": {revision}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address("/events")+"?"+q.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // the stream has ended
	if res.StatusCode != http.StatusOK {
		return statusError(res.StatusCode)
	}
	opened()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			notice()
		}
	}
	return lines.Err()
}

// statusError is the status of a response that should have been a stream or a page.
type statusError int

// Error implements error.
func (e statusError) Error() string { return http.StatusText(int(e)) }
