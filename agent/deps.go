package agent

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/schema/task"
)

// Deps are the outside parties of an agent. The zero value is the real ones and
// a log that nobody reads.
type Deps struct {
	Log *slog.Logger
	// FS is where identity, journal and flags are written. Defaults to the
	// operating system's.
	FS FS
	// Clock defaults to the operating system's.
	Clock Clock
	// Transport makes what carries requests. The configuration it gets verifies
	// the server and presents the node's certificate: a replacement must ask
	// its GetClientCertificate for one, as a handshake does, and return that
	// call's error as it is. Defaults to an http.Transport.
	Transport func(*tls.Config) http.RoundTripper
	// Draw spreads the keeper's waits. Defaults to a random one.
	Draw Draw
	// PollTimeout is what a poll asks the server to wait. Defaults to 55 s;
	// below a second a poll does not wait.
	PollTimeout time.Duration
	// Heartbeat is the interval of heartbeats. Defaults to
	// wire.HeartbeatInterval.
	Heartbeat time.Duration
	// Executors replace the built-in list.
	Executors map[task.Type]Executor
	// Wrap changes each executor of the list, for who only pretends the work.
	// Nil leaves them as they are.
	Wrap func(task.Type, Executor) Executor
	// Workloads replaces the configured driver.
	Workloads Workloads
	// Reload reads the configuration again; see LoadConfig. Nil keeps the one
	// given.
	Reload func() (Config, error)
}

// Clock is an agent's time.
type Clock interface {
	// Now is the wall clock. It may be wrong and it may jump.
	Now() time.Time
	// Sleep waits d or until ctx ends, and returns the context's error then.
	Sleep(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time                                   { return time.Now() }
func (systemClock) Sleep(ctx context.Context, d time.Duration) error { return pause(ctx, d) }

// defaults fills in what was left out.
func (d Deps) defaults() Deps {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.FS == nil {
		d.FS = OS{}
	}
	if d.Clock == nil {
		d.Clock = systemClock{}
	}
	return d
}
