package worker

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/internal/temporal"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/version"
)

const (
	// unservedEvery is the interval between checks of the routing while no build receives
	// work, routeEvery otherwise.
	unservedEvery = time.Second
	routeEvery    = 10 * time.Second
	// promoteCommand makes the version of the gpuaas command current.
	promoteCommand = "gpuaas admin promote"
)

// BuildID returns the build ID of this program in Temporal: its version, or its commit
// if it has no version.
func BuildID() string { return buildID(version.Read()) }

func buildID(b version.Build) string {
	if b.Version != "dev" || b.Commit == "" {
		return b.Version
	}
	id := "dev-" + b.Commit[:min(12, len(b.Commit))]
	if b.Modified {
		id += "-dirty"
	}
	return id
}

// identity names this process in Temporal's histories: host/version/pid.
func identity() string {
	host, _ := os.Hostname()
	return strings.Join([]string{cmp.Or(host, "unknown"), version.Version(), strconv.Itoa(os.Getpid())}, "/")
}

// router reads and changes which build receives work. internal/temporal implements it.
type router interface {
	Routing(ctx context.Context, fresh time.Duration) (temporal.Routing, error)
	TakeOver(ctx context.Context, build string) error
}

// versions keeps a build in service: it makes the build of this worker current when no
// worker of the current build is left, unless the build was current before: it is the
// older one then. Otherwise the worker waits as a standby until its version is promoted.
type versions struct {
	router router
	build  string // temporal.Unversioned without versioning
	fresh  time.Duration
	log    *slog.Logger

	mu      sync.Mutex
	fault   error
	routing temporal.Routing
	known   bool
}

func newVersions(r router, build string, log *slog.Logger) *versions {
	return &versions{router: r, build: build, fresh: temporal.PollerFresh, log: log,
		fault: schema.NewError(schema.KindServiceUnavailable, "the version that receives work is not known yet")}
}

// Run checks the routing until ctx ends, and returns nil then.
func (v *versions) Run(ctx context.Context) error {
	for {
		pause := routeEvery
		if err := v.check(ctx); err != nil {
			pause = unservedEvery
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Healthy returns nil if this worker receives work or is a standby for another build
// that does.
func (v *versions) Healthy(context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fault
}

// check reads the routing, and takes over if no worker of the current build is left.
func (v *versions) check(ctx context.Context) error {
	r, err := v.router.Routing(ctx, v.fresh)
	switch before := r.Current; {
	case err != nil:
	case r.MayTakeOver(v.build):
		if err = v.router.TakeOver(ctx, v.build); err == nil {
			v.log.Info("took over: no worker of the version before is left", slog.String("before", before), slog.String("version", v.build))
			r, err = v.router.Routing(ctx, v.fresh)
		}
		if err != nil {
			err = schema.Wrap(schema.KindOf(err), err, "no worker receives work, and %s cannot take over", temporal.VersionName(v.build)).
				WithReason("no_current_version").WithNext(promoteCommand)
		}
	case !r.Receives(v.build) && !r.Polls(before):
		err = schema.NewError(schema.KindServiceUnavailable,
			"no worker of the current %s polls; %s was current before it and does not take over automatically, because it may not know the newer histories",
			temporal.VersionName(before), temporal.VersionName(v.build)).WithReason("current_version_away").
			WithNext("start a gpuaas-worker of " + temporal.VersionName(before) + ", or go back on purpose: " + promoteCommand + " --to " + v.build)
	}
	v.store(r, err)
	return err
}

// store keeps the result of a check and logs a change of the version that receives work.
func (v *versions) store(r temporal.Routing, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := !v.known || v.routing.Receives(v.build) != r.Receives(v.build) || v.routing.Current != r.Current
	v.fault = err
	if err != nil || !changed {
		return
	}
	v.routing, v.known = r, true
	if r.Receives(v.build) {
		v.log.Info("this version receives work", slog.String("version", v.build))
		return
	}
	v.log.Warn("standby: another version receives work; this worker takes over when no worker of it is left",
		slog.String("current", r.Current), slog.String("version", v.build), slog.String("next", promoteCommand))
}
