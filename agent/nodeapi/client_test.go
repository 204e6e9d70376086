package nodeapi

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
)

// TestParseRetryAfter bounds what one answer can ask for.
func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "x": 0, "999999999": maxRetryAfter} {
		rec := httptest.NewRecorder()
		rec.Header().Set("Retry-After", header)
		rec.WriteHeader(http.StatusTooManyRequests)
		got, _ := errors.AsType[apierror.RetryError](refusal(rec.Result(), nil))
		require.Equal(t, want, got.After, header)
	}
}
