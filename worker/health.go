package worker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuaas/gpuaas/schema"
)

// healthBudget bounds the checks behind one /healthz.
const healthBudget = 3 * time.Second

// health answers /healthz: 200 when the worker runs and reaches its parts, 503
// with the reason otherwise.
type health struct {
	mu    sync.Mutex
	parts *parts
	why   error
}

func (h *health) ready(p *parts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts, h.why = p, nil
}

func (h *health) waiting(why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = why
}

func (h *health) check(ctx context.Context) error {
	h.mu.Lock()
	p, why := h.parts, h.why
	h.mu.Unlock()
	if p == nil {
		if why == nil {
			why = schema.Errorf(schema.KindServiceUnavailable, "the worker is starting")
		}
		return why
	}
	return errors.Join(p.sets.Healthy(), p.store.Ping(ctx), p.temporal.Healthy(ctx))
}

// ServeHTTP implements http.Handler.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), healthBudget)
	defer cancel()
	if err := h.check(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// serveHealth serves /healthz and /metrics until ctx ends.
func serveHealth(ctx context.Context, addr string, reg *prometheus.Registry, h *health) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return schema.Wrap(schema.KindInvalidRequest, err, "listening on GPUAAS_METRICS_ADDR")
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", h)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: healthBudget}
	go func() {
		<-ctx.Done()
		server.Close() //nolint:errcheck // ending: nothing is left to do about it
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return schema.Wrap(schema.KindInternal, err, "serving metrics")
	}
	return nil
}
