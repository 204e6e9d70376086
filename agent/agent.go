package agent

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpuaas/gpuaas/agent/health"
	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/nodeapi"
	"github.com/gpuaas/gpuaas/agent/release"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/agent/verify"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/version"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Agent is one node's agent. Make it with New and run it once, or drive it with
// RunOnce. Many may live in one process.
type Agent struct {
	conf   Config
	deps   Deps
	log    *slog.Logger
	now    func() time.Time
	timing timing

	state     disk.StateDir
	lock      disk.Lock
	clock     *nodeapi.Clock
	identity  *identity.Manager
	cordon    *workload.CordonFlag
	workloads *workload.Monitor
	journal   *runner.Journal
	tasks     *runner.Runner
	sets      *verify.SetStore
	upgrade   *release.Upgrade
	client    atomic.Pointer[nodeapi.Client]

	bootID   string
	session  string
	started  time.Time
	resumed  sync.Once
	reread   atomic.Bool     // the CA bundle must be read again
	leaving  atomic.Bool     // the agent stops and wipes its identity
	replaced atomic.Bool     // the agent stops, and another release starts in its process
	lastLoop atomic.Int64    // unix ns of the poll loop's latest iteration
	polls    atomic.Int64    // made so far
	changed  chan struct{}   // holds a value when the node changed since the last heartbeat
	reported time.Time       // of the last heartbeat that the server has; zero if one is due
	kept     *checkpoint     // of the audit trail
	monitor  *health.Monitor // of this machine
	health   healthReports
	fault    string // why the agent accepts no tasks
	doubt    bool   // the last status file could not be written
	stop     context.CancelCauseFunc
}

// New makes an agent from a validated configuration and locks its state folder,
// which belongs to one agent at a time, until Close. It opens no connection.
func New(c Config, d Deps) (_ *Agent, err error) {
	d = d.defaults()
	t := defaultTiming()
	if d.timing != nil {
		t = *d.timing
	}
	if d.PollTimeout > 0 {
		t.identity.PollTimeout = d.PollTimeout
	}
	log := d.Log.With("node_id", c.NodeID)
	a := &Agent{
		conf: c, deps: d, log: log, now: d.Clock.Now, timing: t,
		state: disk.StateDir{Path: c.StateDir, FS: d.FS}, started: d.Clock.Now(), changed: make(chan struct{}, 1),
		bootID: d.BootID(),
		stop:   func(error) {},
	}
	if d.Ballast {
		a.state.Ballast = a.state.File(disk.BallastFile)
	}
	if err := a.state.Ensure("journal", "identity"); err != nil {
		return nil, err
	}
	if a.lock, err = a.state.Lock(); err != nil {
		return nil, err
	}
	made := false
	defer func() {
		if !made { // also when a panic unwinds it: the lock must not outlive it
			a.Close()
		}
	}()
	a.session = sessionName(a.bootID, a.started)
	a.kept = newCheckpoint(c.Env, a.state, log)
	a.clock = nodeapi.NewClock(func() time.Time { return a.now() }, log)
	own := c.identity()
	own.CheckRemoval = removalCheck(a)
	a.identity = identity.New(own, a.state, identityPort{a}, a.clock, log)
	a.identity.SetTiming(t.identity, d.Jitter)
	if a.cordon, err = workload.LoadCordon(a.state, a.change); err != nil {
		return nil, err
	}
	driver := d.Workloads
	if driver == nil {
		if driver, err = c.newDriver(workload.Config{State: a.state, Cordoned: a.cordon.Cordoned, Changed: a.change, Log: log}); err != nil {
			return nil, err
		}
	}
	a.workloads = workload.NewMonitor(driver, a.now, a.change, log)
	if d.Workloads == nil {
		a.workloads.Observe(workload.NewGPUs(c.NvidiaSMI, a.now, log))
	}
	if a.monitor, err = newMonitor(a); err != nil {
		return nil, err
	}
	a.health.monitor = cmp.Or[HealthMonitor](d.Health, a.monitor)
	a.upgrade = openUpgrade(a)
	if err := a.openTasks(); err != nil {
		return nil, err
	}
	made = true
	return a, nil
}

// openTasks opens the journal and the verifier set, and wires the executors.
func (a *Agent) openTasks() error {
	j, err := runner.OpenJournal(a.state, a.log)
	if err != nil {
		return err
	}
	a.journal = j
	clock := verify.OpenClock(func() time.Time { return a.now() }, a.state, j.TimeFloor(), a.log)
	retry := wait.Range{Min: a.timing.poll.Min, Max: a.timing.identity.Refused.Max}
	if a.sets, err = verify.OpenSets(a.state, a.conf.Env, a.conf.trust, clock, retry, a.log); err != nil {
		return err
	}
	list := a.deps.Executors
	if list == nil {
		list = a.executors()
	}
	if a.deps.Wrap != nil {
		wrapped := make(map[task.Type]runner.Executor, len(list))
		for t, x := range list {
			wrapped[t] = a.deps.Wrap(t, x)
		}
		list = wrapped
	}
	a.tasks = runner.New(runner.Config{
		Journal: j, Executors: list, Timing: a.timing.task, State: a.state,
		API: func() runner.API { return a.api() }, Removed: a.change, // the next poll receives the proof, if there is one
		Local: func() time.Time { return a.now() }, Server: a.clock.Now, Trusted: clock.Now, Log: a.log,
	})
	return nil
}

// Close releases the state folder.
func (a *Agent) Close() { a.lock.Release() }

func (a *Agent) api() *nodeapi.Client { return a.client.Load() }

// newClient makes a client that presents a certificate and signs with its key.
func (a *Agent) newClient(present func(*tls.CertificateRequestInfo) (*tls.Certificate, error), key crypto.Signer) (*nodeapi.Client, error) {
	return nodeapi.New(nodeapi.Config{
		URL: a.conf.APIURL, NodeID: a.conf.NodeID, CABundlePath: a.conf.CABundlePath, AgentVersion: version.Version(),
		Transport: a.deps.Transport, Clock: a.clock,
	}, present, key)
}

// connect makes the client of the identity in use and closes the previous one's
// idle connections; requests under way end as usual.
func (a *Agent) connect() error {
	v := a.identity.Current()
	var key crypto.Signer
	if v != nil {
		key, _ = v.Certificate.PrivateKey.(crypto.Signer)
	}
	c, err := a.newClient(a.identity.Presenter(v), key)
	if err != nil {
		return err
	}
	if previous := a.client.Swap(c); previous != nil {
		previous.Close()
	}
	return nil
}

// identityPort implements the identity manager's API with the node API.
type identityPort struct{ a *Agent }

func (p identityPort) Request(ctx context.Context, path string, body any) (wire.EnrollResponse, error) {
	api, err := p.a.newClient(nil, nil)
	if err != nil {
		return wire.EnrollResponse{}, err
	}
	defer api.Close()
	return api.Certificate(ctx, path, body)
}

func (p identityPort) Renew(ctx context.Context, r wire.RenewRequest) (wire.EnrollResponse, error) {
	return p.a.api().Certificate(ctx, "/certificates/renew", r)
}

func (p identityPort) Confirm(ctx context.Context, present identity.Presenter) error {
	api, err := p.a.newClient(present, nil)
	if err != nil {
		return err
	}
	defer api.Close()
	return api.Probe(ctx)
}

func (p identityPort) Reconnect() error { return p.a.connect() }

// Run works until ctx ends or a signed document removes the node; both are a nil error, so that
// a supervisor that restarts on failure does not restart a removed node. ErrReplaced asks the
// caller to start the installed agent again, which launches another release.
func (a *Agent) Run(ctx context.Context) error {
	ctx, a.stop = context.WithCancelCause(ctx)
	defer a.stop(nil)
	a.log.Info("agent started", "version", version.Version(), "server", a.conf.APIURL, "state_dir", a.conf.StateDir,
		"env_file", a.conf.EnvFile, "workload_driver", a.conf.WorkloadDriver, "cordoned", a.cordon.Cordoned(),
		"tasks_held", len(a.journal.Held()))

	if fi, err := os.Stat(a.conf.EnvFile); err == nil && fi.Mode().Perm()&0o077 != 0 {
		a.log.Warn("env file is readable by others and may hold a token", "env_file", a.conf.EnvFile, "mode", fi.Mode().String())
	}

	var wg sync.WaitGroup
	wg.Go(func() { a.workloads.Run(ctx) })
	wg.Go(func() { a.watchdog(ctx) })
	wg.Go(func() { a.upgrade.Watch(ctx) })
	wg.Go(func() { a.health.monitor.Run(ctx, a.change) })
	notify(systemd.SdNotifyReady)
	if err := a.gpuReset().Recover(ctx); err != nil {
		a.log.Error("an interrupted reset of GPUs is not undone", "err", err.Error())
	}
	err := a.work(ctx)
	a.stop(err)
	if !a.replaced.Load() { // systemd need not know: its process stays
		notify(systemd.SdNotifyStopping)
	}
	wg.Wait()
	a.tasks.Wait()
	if a.leaving.Load() {
		return a.identity.Wipe().Err
	}
	if a.identity.Removed() {
		a.log.Error("node removed: the agent stops")
		return nil
	}
	if a.replaced.Load() {
		return ErrReplaced
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Info("agent stopped")
	return nil
}

// resume resumes the tasks of a previous process, once there is an identity to report
// with.
func (a *Agent) resume(ctx context.Context) {
	a.resumed.Do(func() { a.tasks.Resume(ctx) })
}

// reloadConfig reads the token, the address and the trust from the environment and the
// env file again. It keeps the current values if they cannot be read.
func (a *Agent) reloadConfig() {
	if a.deps.Reload == nil {
		return
	}
	c, err := a.deps.Reload()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		a.log.Warn("cannot load the configuration again, keeping the current one", "err", err.Error())
		return
	}
	if c.NodeID != a.conf.NodeID || c.StateDir != a.conf.StateDir {
		return
	}
	a.conf.EnrollmentToken, a.conf.APIURL, a.conf.CABundlePath = c.EnrollmentToken, c.APIURL, c.CABundlePath
	a.conf.SigningPubkeys, a.conf.trust = c.SigningPubkeys, c.trust
	a.sets.Configure(c.trust)
	a.identity.Reconfigure(c.APIURL, c.EnrollmentToken)
}
