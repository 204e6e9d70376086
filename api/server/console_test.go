package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// browser is a client with the cookies of a console over a replica.
type browser struct {
	tb     testing.TB
	client *http.Client
	url    string
}

func (r *replica) browse() *browser {
	r.tb.Helper()
	server := httptest.NewUnstartedServer(nil)
	r.console.URL = &url.URL{Scheme: "http", Host: server.Listener.Addr().String()}
	c, err := console.New(r.console)
	require.NoError(r.tb, err)
	server.Config.Handler = c.Handler()
	server.Start()
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- c.Run(ctx) }()
	r.tb.Cleanup(func() {
		stop()
		assert.NoError(r.tb, <-stopped)
		server.Close()
	})
	jar, err := cookiejar.New(nil)
	require.NoError(r.tb, err)
	return &browser{r.tb, &http.Client{Jar: jar}, server.URL}
}

// open returns a page after redirects, and its address.
func (b *browser) open(path string, form url.Values) (status int, at, page string) {
	b.tb.Helper()
	var response *http.Response
	var err error
	if form == nil {
		response, err = b.client.Get(b.url + path)
	} else {
		response, err = b.client.PostForm(b.url+path, form)
	}
	require.NoError(b.tb, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(b.tb, err)
	return response.StatusCode, response.Request.URL.Path, string(text)
}

// A change in the console is one of the admin API: the audit trail names the subject and the console,
// and a second click changes nothing.
func TestConsoleOverTheAdminAPI(t *testing.T) {
	r := newCluster(t).replica()
	m := r.enrolled()
	b := r.browse()
	_, at, _ := b.open("/console/nodes", nil)
	assert.Equal(t, "/console/login", at)
	status, at, page := b.open("/console/login", url.Values{"token": {adminToken}, "next": {"/console/nodes"}})
	require.Equal(t, http.StatusOK, status)
	assert.Equal(t, "/console/nodes", at)
	assert.Contains(t, page, r.show(m.id).Host)

	form := "/console/nodes/" + m.id + "/quarantine"
	_, _, page = b.open(form, nil)
	key := regexp.MustCompile(`name="key" value="([^"]+)"`).FindStringSubmatch(page)
	require.Len(t, key, 2, page)
	sent := url.Values{"key": {key[1]}, "reason": {"RMA-4411"}}
	status, first, page := b.open(form, sent)
	require.Equal(t, http.StatusOK, status, page)
	assert.Contains(t, page, "RMA-4411")
	_, second, _ := b.open(form, sent)
	assert.Equal(t, first, second, "one operation")

	var trail wire.AuditPage
	r.ask(http.MethodGet, "/audit?action=nodes.quarantine&node="+m.id, nil).into(t, &trail)
	require.NotEmpty(t, trail.Events)
	assert.Equal(t, "admin-token", trail.Events[0].Actor)
	assert.Equal(t, console.Via, trail.Events[0].Via)
	var ops wire.OperationList
	r.ask(http.MethodGet, "/operations?action=quarantine&node="+m.id, nil).into(t, &ops)
	assert.Len(t, ops.Operations, 1)

	status, _, page = b.open("/console/nodes/"+m.id+"/drain", url.Values{"key": {"k"}, "reason": {"r"}, "typed": {r.show(m.id).Host}})
	assert.Equal(t, http.StatusConflict, status, "the admin API refuses a second operation")
	assert.Contains(t, page, "operation_in_progress"[:9])
	assert.NotContains(t, r.log.String(), adminToken)
	assert.Equal(t, lifecycle.ActionQuarantine, ops.Operations[0].Action)
}

// A session of the console does not open the admin API: only requests in this process have its subject.
func TestSessionIsNoBearerToken(t *testing.T) {
	r := newCluster(t).replica()
	b := r.browse()
	b.open("/console/login", url.Values{"token": {adminToken}})
	u, err := url.Parse(b.url)
	require.NoError(t, err)
	cookies := b.client.Jar.Cookies(u)
	require.NotEmpty(t, cookies)
	a, err := send(t.Context(), http.DefaultClient, http.MethodGet, r.admin+"/nodes", nil, "Cookie", cookies[0].String(), "Authorization", "Bearer "+cookies[0].Value)
	require.NoError(t, err)
	assert.Equal(t, http.StatusUnauthorized, a.status)
}

func TestInProcess(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/silent", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	get := func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x"+path, http.NoBody)
		require.NoError(t, err)
		return inProcess{mux}.RoundTrip(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	response, err := get(ctx, "/stream") //nolint:bodyclose // its end is the subject
	require.NoError(t, err)
	part := make([]byte, 5)
	_, err = io.ReadFull(response.Body, part)
	require.NoError(t, err)
	assert.Equal(t, "first", string(part), "a response arrives as it is written")
	cancel()
	_, err = response.Body.Read(part)
	require.ErrorIs(t, err, io.EOF)

	response, err = get(t.Context(), "/abort") //nolint:bodyclose // its end is the subject
	require.NoError(t, err)
	_, err = io.ReadAll(response.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = get(t.Context(), "/silent") //nolint:bodyclose // there is no response
	require.Error(t, err)
	_, err = get(ctx, "/stream") //nolint:bodyclose // there is no response
	assert.True(t, err == nil || errors.Is(err, context.Canceled))
}

// A form of the console needs the role that its endpoint of the admin API needs.
func TestRolesOfTheConsole(t *testing.T) {
	name := regexp.MustCompile(`\{[a-z_]+\}`)
	roles := map[string]adminapi.Role{}
	for _, e := range adminapi.New(adminapi.Config{}).Endpoints() {
		if e.Method == http.MethodPost {
			roles[name.ReplaceAllString(e.Path, "{}")] = e.Role
		}
	}
	compared := 0
	for _, r := range console.Routes() {
		if need, ok := roles["/api/v1/admin"+name.ReplaceAllString(r.Path, "{}")]; ok && r.Method == http.MethodPost {
			assert.Equal(t, need, r.Role, r.Path)
			compared++
		}
	}
	assert.Greater(t, compared, 15)
}
