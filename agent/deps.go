package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/gpuaas/gpuaas/agent/host"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Deps are an agent's dependencies. The zero value uses the operating system and no
// log.
type Deps struct {
	Log *slog.Logger
	// FS is where identity, journal and flags are written. Defaults to the
	// operating system's.
	FS disk.FS
	// Ballast reserves a mebibyte in the state folder for the agent's own files on a
	// full disk.
	Ballast bool
	// Clock defaults to the operating system's.
	Clock Clock
	// Transport makes what carries requests. The configuration it gets verifies
	// the server and presents the node's certificate: a replacement must ask
	// its GetClientCertificate for one, as a handshake does, and return that
	// call's error as it is. Defaults to an http.Transport.
	Transport func(*tls.Config) http.RoundTripper
	// Jitter spreads the waits of the identity manager. Defaults to a random one.
	Jitter wait.Jitter
	// PollTimeout is how long a poll asks the server to wait. Defaults to 55 s;
	// below a second a poll does not wait.
	PollTimeout time.Duration
	// Executors replace the built-in list.
	Executors map[task.Type]runner.Executor
	// Wrap replaces each executor of the list, for simulators.
	Wrap func(task.Type, runner.Executor) runner.Executor
	// Workloads replaces the configured driver.
	Workloads workload.Driver
	// Reload reads the configuration again; see LoadConfig. Nil keeps the one
	// given.
	Reload func() (Config, error)

	// Running is the binary of the process, for upgrades.
	Running release.Running

	// Health replaces the checks of this machine.
	Health HealthMonitor
	// Artifacts reads the versions and digests of what runs on the node by name; the result is incomplete if the
	// context ended. Nil reports none.
	Artifacts func(context.Context) map[string]string
	// BootID replaces the boot ID of this machine, for simulators.
	BootID func() string
	// Reboot replaces the restart of this machine. It returns once the restart has begun.
	Reboot func(ctx context.Context) error

	timing *timing // nil: defaultTiming
}

// Types of the file system, for callers that replace it.
type (
	// FS is the part of a file system that the agent writes through.
	FS = disk.FS
	// File is a file being written.
	File = disk.File
	// OS is the operating system's file system.
	OS = disk.OS
)

// Clock is an agent's time.
type Clock interface {
	// Now is the wall clock. It may be wrong and it may jump.
	Now() time.Time
	// Sleep waits d or until ctx ends, and returns the context's error then.
	Sleep(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error { return wait.Sleep(ctx, d) }

// defaults sets the missing dependencies.
func (d Deps) defaults() Deps {
	d.Log = cmp.Or(d.Log, slog.New(slog.DiscardHandler))
	d.FS = cmp.Or[disk.FS](d.FS, disk.OS{})
	d.Clock = cmp.Or[Clock](d.Clock, systemClock{})
	if d.BootID == nil {
		d.BootID = func() string { return host.BootID("/") }
	}
	return d
}
