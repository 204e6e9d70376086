package adminapi_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/adminapi"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// bearer makes the bearer token the name of a subject.
type bearer struct{}

func (bearer) Authenticate(r *http.Request) (adminapi.Subject, error) {
	return adminapi.Subject{Name: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), Role: trust.RoleReporter}, nil
}

// A subject that sends too many reports is rejected with Retry-After before its report is read. Another
// subject is not.
func TestReportsAreLimited(t *testing.T) {
	t.Parallel()
	d := newBackend()
	h := adminapi.New(adminapi.Config{Auth: bearer{}, Nodes: d, Signals: d, Log: slog.New(slog.DiscardHandler), Ready: func() error { return nil }}).Handler()
	put := func(subject string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/api/v1/admin/nodes/gpu-1/conditions", strings.NewReader("{}"))
		r.Header.Set("Authorization", "Bearer "+subject)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	var last *httptest.ResponseRecorder
	for range 100_000 { // ends after the burst, and what the rate adds meanwhile
		if last = put("agent-1"); last.Code == http.StatusTooManyRequests {
			break
		}
		require.Equal(t, http.StatusBadRequest, last.Code, "the report is read: it is empty")
	}
	require.Equal(t, http.StatusTooManyRequests, last.Code)
	assert.Equal(t, "1", last.Header().Get("Retry-After"))
	var refused schema.ErrorBody
	require.NoError(t, json.Unmarshal(last.Body.Bytes(), &refused))
	assert.Equal(t, schema.KindRateLimited, refused.Error.Code)
	assert.Equal(t, "over_reports", refused.Error.Reason)
	assert.Equal(t, http.StatusBadRequest, put("agent-2").Code)
}
