package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// Pages with the same data are rendered once for each role, and again after a while, because they say
// how long ago things were.
func TestRenderedOnce(t *testing.T) {
	s, c := siteWithClock(t)
	operator := s.cookie
	s.cookie = nil // a login ends the session of its browser
	viewer := s.login(trust.RoleViewer).cookie
	region := func(cookie *http.Cookie) string {
		s.cookie = cookie
		w := s.get("/console/", "Gpuaas-Region", "1")
		require.Equal(t, http.StatusOK, w.Code)
		return w.Body.String()
	}
	first := region(operator)
	require.Contains(t, first, `href="/console`+operationPath+`/extend`)
	c.pass(time.Second)
	require.Equal(t, first, region(operator), "it was rendered a second ago")
	require.NotContains(t, region(viewer), `href="/console`+operationPath+`/extend`, "a viewer has no buttons")
	s.cookie = operator
	require.Contains(t, s.get("/console/").Body.String(), strings.TrimSpace(first), "the whole page has the same content")
	c.pass(time.Second)
	require.NotEqual(t, first, region(operator))
}

// A page of an operation has data that is at most 2 seconds old, and all open ones read it once.
func TestOperationIsReadOnce(t *testing.T) {
	s, c := siteWithClock(t)
	s.backend.answer("GET "+operationPath, operation())
	for range 3 {
		require.Equal(t, http.StatusOK, s.get("/console"+operationPath).Code)
	}
	require.Equal(t, 1, s.backend.reads(operationPath))
	c.pass(2 * time.Second)
	s.get("/console" + operationPath)
	require.Equal(t, 2, s.backend.reads(operationPath))
}
