package agent

import (
	"context"
	"crypto"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
)

// errRemoved is the server's word that the node is no more.
var errRemoved = schema.NewError(schema.KindInvalidNodeIdentity, "the node is removed").WithReason(schema.ReasonNodeRemoved)

// Agent is one node's agent. Make it with New and run it once, or drive it with
// Step. Many may live in one process.
type Agent struct {
	conf   Config
	deps   Deps
	log    *slog.Logger
	now    func() time.Time
	timing timing

	state     stateDir
	lock      *os.File
	keeper    *keeper
	flags     *flags
	workloads Workloads
	tasks     *tasks
	trust     *setStore
	client    atomic.Pointer[client]
	watch     *notifier

	bootID   string
	holder   string
	started  time.Time
	resumed  sync.Once
	reread   atomic.Bool  // the CA bundle is to be read again
	leaving  atomic.Bool  // the node gives up its identity
	lastLoop atomic.Int64 // unix ns of the poll loop's last turn
	polls    atomic.Int64 // made so far
	changed  chan struct{}
	pulse    *pulse
	stop     context.CancelCauseFunc
}

// New makes an agent from a validated configuration and takes its state folder,
// which belongs to one agent at a time, until Close. It speaks to nobody.
func New(c Config, d Deps) (_ *Agent, err error) {
	d = d.defaults()
	a := &Agent{
		conf: c, deps: d, log: d.Log.With("node_id", c.NodeID), now: d.Clock.Now, timing: defaultTiming(),
		state: stateDir{path: c.StateDir, disk: disk{fs: d.FS}}, started: d.Clock.Now(), changed: make(chan struct{}, 1), bootID: bootID("/"),
		pulse:     newPulse(),
		workloads: d.Workloads, watch: newNotifier(c.NotifySocket, c.WatchdogUsec),
		stop: func(error) {},
	}
	if d.PollTimeout > 0 {
		a.timing.pollTimeout = d.PollTimeout
	}
	if d.Heartbeat > 0 {
		a.timing.heartbeat = d.Heartbeat
	}
	if err := a.state.ensure(); err != nil {
		return nil, err
	}
	if a.lock, err = a.state.lock(); err != nil {
		return nil, err
	}
	made := false
	defer func() {
		if !made { // also when a panic unwinds it: the lock must not outlive it
			a.Close()
		}
	}()
	a.holder = holderName(a.bootID, a.started)
	a.keeper = a.newKeeper()
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
	clock := &trustedClock{local: a.now, told: j.floor.Time, at: a.now()}
	if a.trust, err = openTrust(a.state, c.Env, c.trust, clock, a.timing, a.log); err != nil {
		return nil, err
	}
	if d.Executors == nil {
		d.Executors = a.executors()
	}
	if d.Wrap != nil {
		list := make(map[task.Type]Executor, len(d.Executors))
		for t, x := range d.Executors {
			list[t] = d.Wrap(t, x)
		}
		d.Executors = list
	}
	a.tasks = newTasks(j, d.Executors, a.timing, a.now, a.log)
	a.tasks.server, a.tasks.trusted = a.keeper.clock.now, clock.now
	a.tasks.folders = folders{a.state}
	a.tasks.folders.clear(a.log)
	a.tasks.api, a.tasks.removed = a.api, func(err error) { a.stop(err) }
	made = true
	return a, nil
}

// newKeeper makes the identity's keeper. It reads the agent's clock and
// intervals each time anew.
func (a *Agent) newKeeper() *keeper {
	local := func() time.Time { return a.now() }
	k := &keeper{
		conf: &a.conf, deps: a.deps, log: a.log, timing: &a.timing, state: a.state,
		clock: &serverClock{local: local, log: a.log}, store: newVersionStore(a.conf, a.state, a.log),
		keys: keyRing{a.state}, api: a.api, prove: a.beat,
	}
	k.use = func(*version) error { return a.connect() }
	k.setTiming()
	return k
}

// Close gives the state folder back.
func (a *Agent) Close() {
	a.lock.Close() //nolint:errcheck // closing releases the lock; nothing is written through it
}

func (a *Agent) api() *client { return a.client.Load() }

// connect makes the client of the identity in use, which presents its
// certificate and signs with its key, and lets go of the former one's idle
// connections; requests under way end by themselves.
func (a *Agent) connect() error {
	v := a.keeper.inUse.Load()
	c, err := a.deps.newClient(a.conf, a.keeper.clock, a.keeper.presenterOf(v))
	if err != nil {
		return err
	}
	if v != nil {
		c.key, _ = v.cert.PrivateKey.(crypto.Signer)
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
	a.keeper.setTiming()
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
	// What a former process left goes on once there is an identity to report
	// with.
	err := a.work(ctx, func() {
		a.resume(ctx)
		a.pulse.start()
		wg.Go(func() { a.heartbeats(ctx) })
	})
	a.stop(err)
	a.watch.stopping()
	wg.Wait()
	a.tasks.wait()
	if a.leaving.Load() {
		return a.keeper.wipe().Err
	}
	if cause := context.Cause(ctx); isRemoved(cause) || isRemoved(err) {
		a.keeper.wipe()
		a.log.Error("node removed: the server refuses this node for good, the agent stops")
		return nil
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("agent stopped")
	return nil
}

// resume goes on with what a former process left, once.
func (a *Agent) resume(ctx context.Context) {
	a.resumed.Do(func() { a.tasks.resume(ctx) })
}

// rereadBundle takes a replaced token and address from the environment and the
// env file. Anything unreadable keeps what stood.
func (a *Agent) rereadBundle() {
	if a.deps.Reload == nil {
		return
	}
	c, err := a.deps.Reload()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		a.log.Warn("configuration does not read, keeping the old one", "err", err.Error())
		return
	}
	if c.NodeID != a.conf.NodeID || c.StateDir != a.conf.StateDir {
		return
	}
	same := c.EnrollmentToken == a.conf.EnrollmentToken
	a.conf.EnrollmentToken, a.conf.APIURL, a.conf.CABundlePath = c.EnrollmentToken, c.APIURL, c.CABundlePath
	a.conf.SigningPubkeys, a.conf.trust = c.SigningPubkeys, c.trust
	a.trust.configure(c.trust)
	if !same && a.keeper.operatorToken() {
		a.keeper.hold = delay{} // a person is waiting
	}
}
