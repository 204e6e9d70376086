package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
)

// Counts reads the numbers behind the fleet's gauges. It is the port that the
// store implements.
type Counts interface {
	// NodeCounts returns the states that have nodes.
	NodeCounts(ctx context.Context) ([]NodeCount, error)
	// StuckCounts returns the parked operations by phase and reason.
	StuckCounts(ctx context.Context) ([]StuckCount, error)
	// CertificateCounts returns the state of the certificates that nodes hold.
	CertificateCounts(ctx context.Context) (CertificateCounts, error)
	// TaskLeases returns the unfinished tasks by status.
	TaskLeases(ctx context.Context) ([]TaskCount, error)
}

// UnpromotedAfter is how long after its issue an unused certificate counts as
// stuck. An agent uses its certificate within seconds.
const UnpromotedAfter = 10 * time.Minute

const (
	fleetFresh  = 15 * time.Second // how long a reading serves further scrapes
	fleetBudget = 3 * time.Second  // how long a scrape may wait for the database
)

// FleetCollector publishes gauges about the whole fleet, read from the database
// by a scrape at most once every 15 seconds. Only the leader among the processes
// publishes them, so that a sum over all processes counts the fleet once. If
// the database does not respond, the gauges are absent instead of outdated.
type FleetCollector struct {
	counts  Counts
	leading func() bool
	log     *slog.Logger

	nodes, stateAge, stuck, leases *prometheus.Desc
	lifeLeft, overdue, unpromoted  *prometheus.Desc

	mu      sync.Mutex
	readAt  time.Time
	reading []prometheus.Metric
}

// NewFleetCollector returns a collector, to be registered by the caller. leading
// reports whether this process publishes the gauges.
func NewFleetCollector(counts Counts, leading func() bool, log *slog.Logger) *FleetCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &FleetCollector{
		counts: counts, leading: leading, log: log,
		nodes:      desc("gpuaas_nodes", "Nodes by state.", "state"),
		stateAge:   desc("gpuaas_state_age_seconds", "Time since the oldest node in a state entered it.", "state"),
		stuck:      desc("gpuaas_stuck_operations", "Parked operations by phase and reason.", "phase", "reason"),
		leases:     desc("gpuaas_task_leases", "Unfinished node tasks by status. Lost tasks wait for their node or an operator.", "state"),
		lifeLeft:   desc("gpuaas_certificate_life_left_ratio", "Remaining share of the lifetime of the current certificate that expires first; 1 without certificates."),
		overdue:    desc("gpuaas_certificates_overdue", "Current certificates that should have been renewed already."),
		unpromoted: desc("gpuaas_certificates_unpromoted", "Certificates issued over ten minutes ago and never used."),
	}
}

// Describe implements prometheus.Collector.
func (c *FleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.nodes, c.stateAge, c.stuck, c.leases, c.lifeLeft, c.overdue, c.unpromoted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *FleetCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) > fleetFresh {
		reading, err := c.read()
		if err != nil {
			c.log.Warn("cannot read the fleet gauges from the database", slog.Any("err", err))
		}
		c.reading, c.readAt = reading, time.Now()
	}
	for _, m := range c.reading {
		ch <- m
	}
}

func (c *FleetCollector) read() ([]prometheus.Metric, error) {
	ctx, cancel := context.WithTimeout(context.Background(), fleetBudget)
	defer cancel()
	nodes, err := c.counts.NodeCounts(ctx)
	if err != nil {
		return nil, err
	}
	stuck, err := c.counts.StuckCounts(ctx)
	if err != nil {
		return nil, err
	}
	tasks, err := c.counts.TaskLeases(ctx)
	if err != nil {
		return nil, err
	}
	certificates, err := c.counts.CertificateCounts(ctx)
	if err != nil {
		return nil, err
	}
	out := append(c.nodeGauges(nodes), gauge(c.lifeLeft, certificates.ShareLeft),
		gauge(c.overdue, float64(certificates.Overdue)), gauge(c.unpromoted, float64(certificates.Unpromoted)))
	for _, s := range stuck {
		out = append(out, gauge(c.stuck, float64(s.Operations), s.Phase, s.Reason))
	}
	return append(out, c.taskGauges(tasks)...), nil
}

// taskGauges has a row for every status of an unfinished task, so that a status
// without tasks reads 0.
func (c *FleetCollector) taskGauges(counts []TaskCount) []prometheus.Metric {
	tasks := map[task.Status]int64{}
	for _, t := range counts {
		tasks[t.Status] = t.Tasks
	}
	var out []prometheus.Metric
	for _, s := range []task.Status{task.Pending, task.Dispatched, task.Running, task.Lost} {
		out = append(out, gauge(c.leases, float64(tasks[s]), string(s)))
	}
	return out
}

// nodeGauges has a row for every state, so that a state without nodes reads 0.
func (c *FleetCollector) nodeGauges(counts []NodeCount) []prometheus.Metric {
	byState := map[lifecycle.NodeState]NodeCount{}
	for _, n := range counts {
		byState[n.State] = n
	}
	var out []prometheus.Metric
	for _, s := range lifecycle.NodeStates() {
		n := byState[s]
		age := 0.0
		if n.Nodes > 0 {
			age = max(0, time.Since(n.OldestSince).Seconds())
		}
		out = append(out, gauge(c.nodes, float64(n.Nodes), string(s)), gauge(c.stateAge, age, string(s)))
	}
	return out
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}
