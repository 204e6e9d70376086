package edge

import (
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// HealthPath is where both listeners say whether they are ready.
const HealthPath = "/api/v1/healthz"

// Health answers the readiness check.
type Health struct {
	Status string `json:"status"` // ok
}

// HealthRoute answers 200 when ready returns nil and 503 with the error
// otherwise.
func HealthRoute(path string, ready func() error) Route {
	return Route{
		Method: http.MethodGet, Path: path, Success: []int{http.StatusOK},
		Timeout: 5 * time.Second, Quiet: true,
		Handle: func(w http.ResponseWriter, _ *http.Request) error {
			if err := ready(); err != nil {
				return schema.NewError(schema.KindServiceUnavailable, "not ready: %s", schema.AsError(err).Message).WithReason("not_ready")
			}
			return JSON(w, http.StatusOK, Health{Status: "ok"})
		},
	}
}
