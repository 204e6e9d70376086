package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// probeBudget bounds one probe.
const probeBudget = 3 * time.Second

// Health is the readiness of a process: not ready while it starts and while it
// stops, and between them whenever a dependency fails its probe. Probes run in the
// background, so Ready returns immediately. It is safe for concurrent use.
type Health struct {
	log   *slog.Logger
	up    *prometheus.GaugeVec
	every time.Duration

	mu      sync.Mutex
	blocked string // why the process is not ready as a whole, "" when it is
	checks  []*check
}

type check struct {
	name string
	// degrades is true if the process can work without the dependency.
	degrades bool
	probe    func(ctx context.Context) error
	fault    error // of the last probe
}

func newHealth(log *slog.Logger, reg prometheus.Registerer, every time.Duration) *Health {
	return &Health{log: log, every: every, blocked: "starting",
		up: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{Name: "gpuaas_dependency_up",
			Help: "1 if the dependency's last probe succeeded, else 0."}, []string{"name"})}
}

// Add declares a dependency with a short lower-case name. probe returns nil when
// the dependency works, within 3 s. Call it before Start returns.
func (h *Health) Add(name string, probe func(ctx context.Context) error) { h.add(name, probe, false) }

// AddDegrading is Add for a dependency without which the process works in part. Its failure
// does not make the process unready: /readyz names it as degraded.
func (h *Health) AddDegrading(name string, probe func(ctx context.Context) error) {
	h.add(name, probe, true)
}

func (h *Health) add(name string, probe func(ctx context.Context) error, degrades bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, &check{name: name, probe: probe, degrades: degrades})
}

// degraded returns the dependencies whose failure makes the process degraded.
func (h *Health) degraded() (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.checks {
		if c.fault != nil && c.degrades {
			names = append(names, c.name)
		}
	}
	return names
}

// Ready returns nil when the process can work, else an error of
// KindServiceUnavailable, reason not_ready, that names what is missing. Dependencies in exclude do
// not count.
func (h *Health) Ready(exclude ...string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	missing := h.blocked
	if missing == "" {
		var down []string
		for _, c := range h.checks {
			if c.fault != nil && !c.degrades && !slices.Contains(exclude, c.name) {
				down = append(down, c.name)
			}
		}
		if len(down) == 0 {
			return nil
		}
		missing = strings.Join(down, ", ") + " unavailable"
	}
	return schema.NewError(schema.KindServiceUnavailable, "not ready: %s", missing).WithReason("not_ready")
}

// Unavailable returns the error of each dependency whose last probe failed, by name.
func (h *Health) Unavailable() map[string]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	faults := map[string]error{}
	for _, c := range h.checks {
		if c.fault != nil {
			faults[c.name] = c.fault
		}
	}
	return faults
}

// block makes the process unready for a reason; "" removes the reason.
func (h *Health) block(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blocked = reason
}

// probeAll probes all dependencies once, concurrently.
func (h *Health) probeAll(ctx context.Context) {
	var group sync.WaitGroup
	for _, c := range h.checks {
		group.Go(func() { h.probe(ctx, c) })
	}
	group.Wait()
}

// run probes until ctx ends.
func (h *Health) run(ctx context.Context) error {
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.probeAll(ctx)
		}
	}
}

// probe records a dependency's state and logs each change.
func (h *Health) probe(ctx context.Context, c *check) {
	probing, cancel := context.WithTimeout(ctx, probeBudget)
	defer cancel()
	err := c.probe(probing)
	if ctx.Err() != nil {
		return // stopping
	}
	h.mu.Lock()
	changed := (c.fault != nil) != (err != nil)
	c.fault = err
	h.mu.Unlock()
	h.up.WithLabelValues(c.name).Set(asFloat(err == nil))
	switch {
	case changed && err != nil:
		h.log.Warn("dependency is unavailable", slog.String("name", c.name), slog.Any("err", err),
			slog.String("next", schema.AsError(err).Next))
	case changed:
		h.log.Info("dependency is available again", slog.String("name", c.name))
	}
}

// Wrap returns a handler that serves /livez and /readyz itself and passes other
// requests to next. /livez is 200 as long as the process serves. /readyz is 200,
// or 503 with the error envelope; each exclude parameter names a dependency that
// does not count. The 200 names the dependencies without which the process works in part.
func (h *Health) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/livez":
			writeHealth(w, nil, nil)
		case "/readyz":
			writeHealth(w, h.Ready(r.URL.Query()["exclude"]...), h.degraded())
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// health is the body of a 200.
type health struct {
	Status   string   `json:"status"` // ok
	Degraded []string `json:"degraded,omitempty"`
}

func writeHealth(w http.ResponseWriter, err error, degraded []string) {
	status, body := http.StatusOK, any(health{"ok", degraded})
	if err != nil {
		id := schema.NewID()
		w.Header().Set(wire.HeaderCorrelationID, id)
		status, body = http.StatusServiceUnavailable, schema.AsError(err).Body(id)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the prober may be gone
}

func asFloat(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}
