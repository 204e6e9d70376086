package clusteragent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/recovery"
)

const (
	// reconcileEvery is how often all nodes are checked, and reconcileTimeout bounds one round.
	reconcileEvery   = 10 * time.Second
	reconcileTimeout = 5 * time.Minute
	// saveEvery is the longest time between two updates of the record while a node is unhealthy. It is
	// shorter than health.MaxGap, so that a restart of the program does not count as a gap.
	saveEvery = time.Minute
	// rebootPeriod is the time within which a node is restarted at most settings.maxReboots times.
	rebootPeriod = 24 * time.Hour
)

// settings say what the agent may do.
type settings struct {
	monitorOnly  bool
	checkers     []health.Checker[health.ClusterNode]
	wait         time.Duration // after a restart, for nodes without GPUs
	gpuWait      time.Duration // and with GPUs
	maxRebooting int           // at the same time
	maxReboots   int           // of one node within rebootPeriod
	breakerOff   bool
}

// tracked is the agent's data about one node.
type tracked struct {
	entry
	tracker *health.Tracker
	sample  health.ClusterNode
	// shadow are the restarts that would have been done in place of entry.Reboots.
	shadow []time.Time
	// brake is why the node's repair did not start, as last logged.
	brake string
	// reported is the last report that the control plane has, and quiet until when it gets none.
	reported health.Report
	quiet    time.Time
}

// agent checks nodes and repairs them. It runs in one goroutine.
type agent struct {
	settings
	log      *slog.Logger
	metrics  *metrics
	client   kubernetes.Interface
	list     func() ([]*corev1.Node, error)
	executor Executor
	control  *controlPlane // nil if it is not joined to one
	record   *record
	now      func() time.Time

	loaded  bool
	savedAt time.Time
	swept   time.Time
	states  health.StateStore
	nodes   map[string]*tracked
	// storm is the state of the breaker.
	storm recovery.BreakerState
}

// option configures an agent.
type option func(*agent)

// withExecutor sets the executor; nil keeps the one that does nothing.
func withExecutor(e Executor) option {
	return func(a *agent) {
		if e != nil {
			a.executor = e
		}
	}
}

// withControlPlane joins the agent to a control plane; nil leaves it alone.
func withControlPlane(c *controlPlane) option { return func(a *agent) { a.control = c } }

func withNowFunc(now func() time.Time) option { return func(a *agent) { a.now = now } }

func withNodeLister(list func() ([]*corev1.Node, error)) option {
	return func(a *agent) { a.list = list }
}

// newAgent returns an agent that keeps its record in the namespace.
func newAgent(client kubernetes.Interface, namespace string, s settings, log *slog.Logger, m *metrics, options ...option) *agent {
	a := &agent{settings: s, log: log, metrics: m, client: client, executor: NewNopExecutor(), now: time.Now,
		record: &record{client: client, namespace: namespace}}
	for _, o := range options {
		o(a)
	}
	return a
}

// run reconciles until ctx ends, and then forgets all nodes: another leader has their series.
func (a *agent) run(ctx context.Context) {
	defer func() {
		for name := range a.nodes {
			a.metrics.forget(name)
		}
		a.nodes, a.loaded, a.storm = nil, false, recovery.BreakerState{}
		a.metrics.breakerOpen(false)
	}()
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		a.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reconcile checks all nodes once and starts the repairs that are due. Without the record it does
// nothing, because it does not know which nodes were restarted.
func (a *agent) reconcile(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	if !a.loaded {
		if err := a.load(ctx); err != nil {
			a.failed(errorState, "cannot read the state of the nodes; no node is checked", err)
			return
		}
	}
	nodes, err := a.list()
	if err != nil {
		a.failed(errorInternal, "cannot list the nodes", err)
		return
	}
	changed := a.forget(nodes)
	for _, n := range nodes {
		changed = a.observe(n) || changed
	}
	changed = breaker{a}.step() || changed
	if changed || a.now().Sub(a.savedAt) >= saveEvery {
		if !a.save(ctx) {
			return
		}
	}
	if a.control != nil {
		a.join(ctx)
		return
	}
	a.repairAll(ctx)
}

// load replaces the agent's data with the record.
func (a *agent) load(ctx context.Context) error {
	entries, storm, err := a.record.load(ctx)
	if err != nil {
		return err
	}
	if !a.idle() {
		a.storm = storm
	}
	states, before := health.NewMemoryStore(), a.nodes
	a.nodes = map[string]*tracked{}
	var stored []health.State
	for name, e := range entries {
		a.nodes[name] = &tracked{entry: e, tracker: health.NewTracker(e.Report)}
		if e.State.Node() == name && !a.idle() {
			stored = append(stored, e.State)
		}
		if t := before[name]; t != nil {
			a.nodes[name].shadow, a.nodes[name].reported = t.shadow, t.reported
		}
	}
	if err := states.Restore(stored); err != nil {
		return err
	}
	a.states, a.loaded, a.savedAt = states, true, a.now()
	return nil
}

// idle reports whether the agent changes no machine.
func (a *agent) idle() bool { return a.monitorOnly || a.control != nil }

// save writes the record. After an error, another process may have written it: the next round loads
// it again.
func (a *agent) save(ctx context.Context) bool {
	entries := map[string]entry{}
	for name, t := range a.nodes {
		if e, keep := a.entryOf(name, t); keep {
			entries[name] = e
		}
	}
	storm := a.storm
	if a.idle() {
		storm = recovery.BreakerState{}
	}
	if err := a.record.save(ctx, entries, storm); err != nil {
		a.loaded = false
		a.failed(errorState, "cannot store the state of the nodes; no node is restarted", err)
		return false
	}
	a.savedAt = a.now()
	return true
}

// entryOf returns what is stored about a node, and false if that is nothing.
func (a *agent) entryOf(name string, t *tracked) (e entry, keep bool) {
	last := t.tracker.Last()
	e = entry{UID: t.UID, Reboots: t.recent(t.Reboots, a.now()), BootBefore: t.BootBefore}
	for _, c := range last.Conditions {
		if c.Status != health.Healthy {
			c.Detail = ""
			e.Report.At, e.Report.BootID = last.At, last.BootID
			e.Report.Conditions = append(e.Report.Conditions, c)
		}
	}
	state := a.states.State(name)
	if !a.idle() {
		e.State = state
	}
	return e, len(e.Report.Conditions) > 0 || len(e.Reboots) > 0 || state.Phase() > health.PhaseHealthy
}

// recent returns the times within rebootPeriod.
func (*tracked) recent(times []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(t time.Time) bool { return now.Sub(t) >= rebootPeriod })
}

// failed counts and logs an error of a round.
func (a *agent) failed(reason, message string, err error, attrs ...any) {
	a.metrics.errors.WithLabelValues(reason).Inc()
	a.log.With(attrs...).Error(message, slog.Any("err", err), slog.String("next", schema.AsError(err).Next)) //nolint:sloglint // the callers' messages are constants
}

// live reads a node from the API server: the informer may be behind.
func (a *agent) live(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}
