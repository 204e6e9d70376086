package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// Agent is one node's agent. Make it with New and run it once.
type Agent struct {
	conf   Config
	log    *slog.Logger
	now    func() time.Time
	timing timing
	// reload reads the configuration again when enrolment waits for a new
	// bundle; nil keeps it.
	reload func() (Config, error)

	state     stateDir
	lock      *os.File
	store     identityStore
	certs     *certSource
	flags     *flags
	workloads Workloads
	tasks     *tasks
	client    atomic.Pointer[client]
	watch     *notifier

	bootID   string
	started  time.Time
	lastLoop atomic.Int64 // unix ns of the poll loop's last turn
	changed  chan struct{}
	stop     context.CancelCauseFunc
}

// Options replace parts of an agent. The zero value is a real one.
type Options struct {
	// Executors replace the built-in list.
	Executors map[schema.TaskType]Executor
	// Workloads replaces the configured driver.
	Workloads Workloads
	// Reload reads the configuration again; see LoadConfig.
	Reload func() (Config, error)
}

// New makes an agent from a validated configuration and takes its state folder,
// which belongs to one process at a time, until Close. It speaks to nobody.
func New(c Config, log *slog.Logger, o Options) (_ *Agent, err error) {
	a := &Agent{
		conf: c, log: log.With("node_id", c.NodeID), now: time.Now, timing: defaultTiming(), reload: o.Reload,
		state: stateDir{path: c.StateDir}, started: time.Now(), changed: make(chan struct{}, 1), bootID: bootID("/"),
		workloads: o.Workloads, watch: newNotifier(c.NotifySocket, c.WatchdogUsec),
		stop: func(error) {},
	}
	if err := a.state.ensure(); err != nil {
		return nil, err
	}
	if a.lock, err = a.state.lock(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	a.store = newIdentityStore(c, a.state)
	a.certs = &certSource{store: a.store}
	if a.flags, err = loadFlags(a.state); err != nil {
		return nil, err
	}
	a.flags.changed = a.change
	if a.workloads == nil {
		if a.workloads, err = newWorkloads(c, a.state, a.flags, a.change, a.log); err != nil {
			return nil, err
		}
	}
	j, err := openJournal(a.state, a.log)
	if err != nil {
		return nil, err
	}
	if o.Executors == nil {
		o.Executors = a.executors()
	}
	a.tasks = newTasks(j, o.Executors, a.timing, a.now, a.log)
	a.tasks.api, a.tasks.removed = a.api, func(err error) { a.stop(err) }
	return a, nil
}

// Close gives the state folder back.
func (a *Agent) Close() {
	a.lock.Close() //nolint:errcheck // closing releases the lock; nothing is written through it
}

func (a *Agent) api() *client { return a.client.Load() }

// connect makes the client of the identity on disk and drops the former one.
func (a *Agent) connect() error {
	c, err := newClient(a.conf, a.certs)
	if err != nil {
		return err
	}
	if old := a.client.Swap(c); old != nil {
		old.close()
	}
	return nil
}

// Run works until ctx ends or the server says that the node is removed; both
// are a nil error, so that a supervisor that restarts on failure lets a removed
// node rest.
func (a *Agent) Run(ctx context.Context) error {
	ctx, a.stop = context.WithCancelCause(ctx)
	defer a.stop(nil)
	a.log.Info("agent starts", "version", Version(), "server", a.conf.APIURL, "state_dir", a.conf.StateDir,
		"env_file", a.conf.EnvFile, "workload_driver", a.conf.WorkloadDriver, "cordoned", a.flags.Cordoned(),
		"tasks_held", len(a.tasks.journal.have()))

	if fi, err := os.Stat(a.conf.EnvFile); err == nil && fi.Mode().Perm()&0o077 != 0 {
		a.log.Warn("env file can be read by others and may hold a token", "env_file", a.conf.EnvFile, "mode", fi.Mode().String())
	}

	var wg sync.WaitGroup
	wg.Go(func() { a.workloads.Run(ctx) })
	wg.Go(func() { a.watchdog(ctx) })
	a.watch.ready()
	err := a.serve(ctx, &wg)
	a.stop(err)
	a.watch.stopping()
	wg.Wait()
	a.tasks.wait()
	if cause := context.Cause(ctx); isRemoved(cause) || isRemoved(err) {
		a.log.Error("node removed: the server refuses this node for good, the agent stops")
		return nil
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("agent stopped")
	return nil
}

// serve enrols when it must, goes on with what a former process left, and polls.
func (a *Agent) serve(ctx context.Context, wg *sync.WaitGroup) error {
	id, err := a.ensureIdentity(ctx)
	if err != nil {
		return err
	}
	a.log.Info("identity in use", "serial", id.facts.Serial, "issuer", id.facts.Issuer, "not_after", id.facts.NotAfter,
		"incarnation", id.id.Incarnation)
	if err := id.checkIssuer(a.conf.NodeCABundlePath); err != nil {
		a.log.Warn("certificate may be of a replaced node ca", "err", err.Error())
	}
	if err := a.connect(); err != nil {
		return err
	}
	a.tasks.resume(ctx)
	wg.Go(func() { a.heartbeats(ctx) })
	return a.poll(ctx)
}
