package edge

import (
	"net/http"
	"time"
)

// HealthPath is the path of the readiness check on both listeners.
const HealthPath = "/api/v1/healthz"

// Health is the 200 response of the readiness check.
type Health struct {
	Status string `json:"status"` // ok
}

// HealthRoute is the readiness check. It responds with 200 if ready returns nil, and
// with its error otherwise.
func HealthRoute(ready func() error) Route {
	return Route{
		Method: http.MethodGet, Path: HealthPath, Success: []int{http.StatusOK},
		Timeout: 5 * time.Second, Quiet: true,
		Handle: func(w http.ResponseWriter, _ *http.Request) error {
			if err := ready(); err != nil {
				return err
			}
			return JSON(w, http.StatusOK, Health{Status: "ok"})
		},
	}
}
