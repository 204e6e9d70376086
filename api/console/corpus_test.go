package console_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/console"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// anID is the ID of everything in the paths of this corpus.
const anID = "0198c0de-0000-7000-8000-000000000001"

// overTLS makes the address of the console one with the scheme https.
func overTLS(c *console.Config) { c.URL = &url.URL{Scheme: "https", Host: host} }

// changes returns the requests of the admin API that are not a GET.
func changes(s *site) (all []asked) {
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		all = append(all, s.backend.sent(method)...)
	}
	return all
}

// formOf is a form for a POST, nil for a GET.
func formOf(method string) url.Values {
	if method == http.MethodGet {
		return nil
	}
	return url.Values{"reason": {"a reason"}, "do": {"drain"}, "state": {"active"}}
}

// pathOf is the path of a route with IDs in place of its wildcards.
func pathOf(r console.Route) string {
	return console.Prefix + regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllStringFunc(r.Path, func(name string) string {
		switch name {
		case "{decision}":
			return "approve"
		case "{action}":
			return "drain"
		}
		return anID
	})
}

// TestOrigins: each form is refused for each combination of origin and site that is not the
// console's, and each request for another host.
func TestOrigins(t *testing.T) {
	t.Parallel()
	s := newSite(t, overTLS).login(trust.RoleAdmin)
	const own = "https://" + host
	for _, c := range []struct {
		origin, site string
		allowed      bool
	}{
		{own, "same-origin", true}, {own, "none", true}, {own, "", true}, {"", "", true}, {"", "same-origin", true},
		{"https://evil.example.com", "cross-site", false}, {"https://evil.example.com", "", false}, {"null", "cross-site", false}, {"null", "", false},
		{"http://evil.example.com", "", false}, {"https://evil." + host, "same-site", false},
		{"", "cross-site", false}, {"", "same-site", false}, {own + ".evil.example.com", "", false},
	} {
		headers := []string{"Origin", c.origin, "Sec-Fetch-Site", c.site}
		for _, route := range console.Routes() {
			w := s.do(route.Method, pathOf(route), formOf(route.Method), headers...)
			refused := w.Code == http.StatusForbidden
			require.Equal(t, route.Method == http.MethodPost && !c.allowed, refused, "%s %s from %q, site %q: %d", route.Method, route.Path, c.origin, c.site, w.Code)
		}
		if c.allowed {
			continue
		}
		for _, path := range []string{"/console/login", "/console/logout"} {
			w := s.do(http.MethodPost, path, url.Values{"token": {tokenOf(trust.RoleAdmin)}}, headers...)
			require.Equal(t, http.StatusForbidden, w.Code)
			require.Empty(t, w.Result().Cookies())
		}
	}
	for _, foreign := range []string{"evil.example.com", "127.0.0.1:8081", "localhost", "localhost:80", host + ".evil.example.com", ""} {
		for _, route := range console.Routes() {
			w := s.do(route.Method, pathOf(route), formOf(route.Method), "Host", foreign)
			require.Equal(t, http.StatusMisdirectedRequest, w.Code, "%s for host %q", route.Path, foreign)
		}
	}
}

// TestReadsChangeNothing: no page makes a request of the admin API that changes something.
func TestReadsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	for _, route := range console.Routes() {
		if route.Method == http.MethodGet {
			s.get(pathOf(route))
			s.get(pathOf(route) + "?do=drain&state=active&reason=x&confirm=1&key=" + anID)
		}
	}
	require.Empty(t, changes(s))
	require.NotEmpty(t, s.backend.sent(http.MethodGet))
}

// TestRolesOfForms: what a role may not send is refused by the console, for each form there is,
// before the admin API is asked.
func TestRolesOfForms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	refused := 0
	for _, role := range []trust.Role{trust.RoleViewer, trust.RoleOperator} {
		s.login(role)
		for _, route := range console.Routes() {
			if route.Method == http.MethodGet || role.Allows(route.Role) {
				continue
			}
			refused++
			w := s.do(route.Method, pathOf(route), formOf(route.Method))
			require.Equal(t, http.StatusForbidden, w.Code, "%s %s by a subject with the role %s", route.Method, route.Path, role)
		}
	}
	require.Greater(t, refused, 2*10)
	require.Empty(t, changes(s))
	for _, route := range console.Routes() {
		require.True(t, route.Method == http.MethodGet || !trust.RoleViewer.Allows(route.Role), "a viewer may send %s", route.Path)
	}
	for _, role := range []trust.Role{trust.RoleBootstrapper, trust.RoleReporter} {
		w := s.do(http.MethodPost, "/console/login", url.Values{"token": {tokenOf(role)}})
		require.Equal(t, http.StatusForbidden, w.Code)
		require.Empty(t, w.Result().Cookies())
	}
}

// TestFormsForAdmins: these forms need the role admin, as their commands do.
func TestFormsForAdmins(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, route := range console.Routes() {
		if route.Method == http.MethodPost && route.Role == trust.RoleAdmin {
			paths = append(paths, route.Path)
		}
	}
	require.ElementsMatch(t, []string{"/nodes/{node}/remove", "/nodes/{node}/terminate", "/nodes/{node}/unlock",
		"/operations/{operation}/force", "/trust/rotation/{decision}"}, paths)
}

// TestFormsAreBounded: a form that is too large is refused before it has an effect.
func TestFormsAreBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	for _, route := range console.Routes() {
		if route.Method == http.MethodPost {
			form := formOf(route.Method)
			form.Set("padding", strings.Repeat("x", 16<<10))
			w := s.do(route.Method, pathOf(route), form)
			require.Equal(t, http.StatusBadRequest, w.Code, route.Path)
			require.Contains(t, w.Body.String(), "the form cannot be read", route.Path)
		}
	}
	require.Empty(t, changes(s))
}

// TestActionsOfTheCommandLine: an action whose result is a secret, or that needs files, has no form.
func TestActionsOfTheCommandLine(t *testing.T) {
	t.Parallel()
	s := newSite(t).login(trust.RoleAdmin)
	for _, action := range []string{"enroll", "reissue-enrollment", "provision"} {
		require.Equal(t, http.StatusNotFound, s.get("/console/nodes/"+anID+"/"+action).Code, action)
		require.Equal(t, http.StatusMethodNotAllowed, s.do(http.MethodPost, "/console/nodes/"+anID+"/"+action, url.Values{}).Code, action)
	}
}

// TestFrames: no response may be shown in a frame, run a script of another site, or be taken for
// another type.
func TestFrames(t *testing.T) {
	t.Parallel()
	s := newSite(t, overTLS).login(trust.RoleViewer)
	s.backend.answer("GET /audit", wire.AuditPage{})
	page := s.get("/console/audit")
	require.Equal(t, http.StatusOK, page.Code)
	text := page.Body.String()
	responses := map[string]*httptest.ResponseRecorder{"page": page}
	for _, m := range regexp.MustCompile(`/console/static/[^"]+`).FindAllString(text, -1) {
		responses[m] = s.get(m)
		require.Equal(t, http.StatusOK, responses[m].Code, m)
	}
	require.Greater(t, len(responses), 2)
	responses["foreign host"] = s.get("/console/", "Host", "evil.example.com")
	responses["cross site"] = s.do(http.MethodPost, "/console/login", url.Values{}, "Sec-Fetch-Site", "cross-site")
	responses["refused token"] = s.do(http.MethodPost, "/console/login", url.Values{"token": {"wrong"}})
	responses["no method"] = s.do(http.MethodPut, "/console/audit", url.Values{})
	responses["forbidden"] = s.do(http.MethodPost, "/console/bulk", url.Values{})
	responses["no node"] = s.get("/console/audit?node=none")
	s.cookie = nil
	for name, path := range map[string]string{"login": "/console/login", "no page": "/console/nowhere", "redirect": "/", "no session": "/console/audit", "no file": "/console/static/x/none.js"} {
		responses[name] = s.get(path)
	}
	require.Equal(t, "/console/", responses["redirect"].Header().Get("Location"))
	for name, w := range responses {
		policy := w.Header().Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'", "require-trusted-types-for 'script'", "trusted-types gpuaas"} {
			require.Contains(t, policy, part, name)
		}
		require.NotContains(t, policy, "unsafe", name)
		require.Equal(t, "DENY", w.Header().Get("X-Frame-Options"), name)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"), name)
		require.NotEmpty(t, w.Header().Get("Strict-Transport-Security"), name)
		require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"), name)
	}
	require.NotRegexp(t, `(?i) (style|on[a-z]+)=|javascript:|<script(>| [^>]*>[^<])|<style`, text)
}

// TestCookies: the cookie is for this host and no script; a login makes a new session and ends the
// one before; no chosen or ended one is accepted.
func TestCookies(t *testing.T) {
	t.Parallel()
	s := newSite(t, overTLS)
	s.backend.answer("GET /audit", wire.AuditPage{})
	works := func(c *http.Cookie) bool {
		s.cookie = c
		w := s.get("/console/audit")
		if w.Code == http.StatusOK {
			return true
		}
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Contains(t, w.Header().Get("Location"), "/console/login")
		require.Equal(t, http.StatusUnauthorized, s.do(http.MethodPost, "/console/bulk", url.Values{}).Code)
		require.Equal(t, http.StatusUnauthorized, s.get("/console/events?view=all").Code)
		return false
	}
	chosen := &http.Cookie{Name: "__Host-gpuaas_console", Value: "chosen-by-another-site"}
	s.cookie = chosen
	first := s.login(trust.RoleOperator).cookie
	require.NotEqual(t, chosen.Value, first.Value)
	require.True(t, first.HttpOnly && first.Secure, first.String())
	require.Equal(t, []any{"__Host-gpuaas_console", "/", "", http.SameSiteLaxMode}, []any{first.Name, first.Path, first.Domain, first.SameSite})
	require.True(t, works(first))
	require.False(t, works(chosen))

	s.cookie = first
	second := s.login(trust.RoleAdmin).cookie
	require.True(t, works(second))
	require.False(t, works(first), "the session before the login")

	s.cookie = second
	require.Equal(t, http.StatusSeeOther, s.do(http.MethodPost, "/console/logout", url.Values{}).Code)
	require.False(t, works(second), "after the logout")

	s.cookie = nil
	third := s.login(trust.RoleOperator).cookie
	require.True(t, works(third))
	s.backend.drop(tokenOf(trust.RoleOperator))
	require.False(t, works(third), "after the removal of its token")
}
