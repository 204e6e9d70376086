// Package workflows imports and calls what it must not.
package workflows

import (
	"crypto/rand"           // want: depguard
	"encoding/json"         // want: depguard
	"log/slog"              // want: depguard
	mathrand "math/rand/v2" // want: depguard
	"net/http"              // want: depguard
	"os"                    // want: depguard
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/internal/store" // want: depguard
)

var counter int // want: gochecknoglobals

func init() { counter = 1 } // want: gochecknoinits

// Planted breaks several rules in one function.
func Planted(workflow.Context) (time.Time, error) {
	counter++
	if _, err := json.Marshal(activities.ID + store.ID + rand.Text()); err != nil {
		return time.Time{}, err
	}
	slog.Info(http.MethodGet, "n", mathrand.Int(), "e", os.Getenv("X")) // want: sloglint
	return time.Now(), nil                                              // want: forbidigo
}
