package console

import (
	"bufio"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/browsertest"
)

// goroutines is the number of goroutines of the API.
func goroutines(t *testing.T) int {
	t.Helper()
	return int(metric(t, "go_goroutines"))
}

// metric is the value of a metric of the API that has no labels.
func metric(t *testing.T, name string) float64 {
	t.Helper()
	res, err := harness.Do(t.Context(), http.DefaultClient, http.MethodGet, stack.Getenv("GPUAAS_API_METRICS_URL"), nil)
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(res.Body)
	require.NotNil(t, m)
	n, err := strconv.ParseFloat(string(m[1]), 64)
	require.NoError(t, err)
	return n
}

// TestHalfClosedClient: the stream of a client that closed its half of the connection ends.
func TestHalfClosedClient(t *testing.T) {
	needStack(t)
	c := login(t)
	before := goroutines(t)
	host := strings.TrimPrefix(stack.Getenv("GPUAAS_API_URL"), "http://")
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", host)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }() // the server has closed it
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address("/events?view=all"), http.NoBody)
	require.NoError(t, err)
	for _, cookie := range c.Jar.Cookies(req.URL) {
		req.AddCookie(cookie)
	}
	require.NoError(t, conn.SetDeadline(time.Now().Add(conditionTimeout)))
	require.NoError(t, req.Write(conn))
	response := bufio.NewReader(conn)
	line, err := response.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "200")
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	_, err = response.WriteTo(&harness.Buffer{}) // until the server closes its half, too
	require.NoError(t, err)
	harness.Poll(t, func() bool { return goroutines(t) <= before+4 }, conditionTimeout, conditionEvery, "the goroutines of the stream end")
}

// TestFailedReads: a page whose reads fail keeps its content and says why, and continues when they work again.
func TestFailedReads(t *testing.T) {
	needStack(t)
	p := visit(t, "/nodes")
	conn := harness.Connect(t.Context(), t, stack)
	defer func() { _ = conn.Close(t.Context()) }() // which also ends the transaction
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "LOCK TABLE nodes")
	require.NoError(t, err)
	p.Wait("the page says why its data is old", `/^This data is \d+ s old: .*database/.test(document.querySelector('#age')?.innerText)`)
	require.True(t, browsertest.Evaluate[bool](p.Page, `!!document.querySelector('main[data-rev]')`), "the content is there")
	require.NoError(t, tx.Rollback(t.Context()))
	p.Wait("the page is up to date", `document.querySelector('#age')?.innerText === 'Up to date.'`)
}
