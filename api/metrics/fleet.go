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
	// NodeCounts returns the numbers of nodes, the largest first.
	NodeCounts(ctx context.Context) ([]NodeCount, error)
	// StuckCounts returns the parked operations by phase and reason.
	StuckCounts(ctx context.Context) ([]StuckCount, error)
	// CertificateCounts returns the state of the certificates that nodes hold.
	CertificateCounts(ctx context.Context) (CertificateCounts, error)
	// TaskLeases returns the unfinished tasks by status.
	TaskLeases(ctx context.Context) ([]TaskCount, error)
	// OutboxAge returns the age of the oldest message to Temporal that failed and
	// is still to be delivered, in seconds, 0 without one.
	OutboxAge(ctx context.Context) (float64, error)
}

// UnpromotedAfter is how long after its issue an unused certificate counts as
// stuck. An agent uses its certificate within seconds.
const UnpromotedAfter = 10 * time.Minute

const (
	fleetFresh  = 15 * time.Second // how long a reading serves further scrapes
	fleetBudget = 3 * time.Second  // how long a scrape may wait for the database
)

// maxNodeSeries limits the combinations of state, SKU and region that have a
// series of their own. The nodes of the smallest others are counted by state, under
// the SKU and region "other".
const maxNodeSeries = 1000

// FleetCollector publishes gauges about the whole fleet, read from the database
// by a scrape at most once every 15 seconds. Only the leader among the processes
// publishes them, so that a sum over all processes counts the fleet once. If
// the database does not respond, the gauges are absent instead of outdated.
type FleetCollector struct {
	counts  Counts
	leading func() bool
	log     *slog.Logger

	mu     sync.Mutex
	readAt time.Time

	nodes, stateAge, stuck, leases, lifeLeft, overdue, unpromoted, outboxAge *prometheus.GaugeVec
}

// NewFleetCollector returns a collector, to be registered by the caller. leading
// reports whether this process publishes the gauges.
func NewFleetCollector(counts Counts, leading func() bool, log *slog.Logger) *FleetCollector {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &FleetCollector{
		counts: counts, leading: leading, log: log,
		nodes:      gauge("gpuaas_nodes", "Nodes by state, SKU and region.", "state", "sku", "region"),
		stateAge:   gauge("gpuaas_state_age_seconds", "Time since the oldest node in a state entered it.", "state"),
		stuck:      gauge("gpuaas_stuck_operations", "Parked operations by phase and reason.", "phase", "reason"),
		leases:     gauge("gpuaas_task_leases", "Unfinished node tasks by status. Lost tasks wait for their node or an operator.", "state"),
		lifeLeft:   gauge("gpuaas_certificate_life_left_ratio", "Remaining share of the lifetime of the current certificate that expires first; 1 without certificates."),
		overdue:    gauge("gpuaas_certificates_overdue", "Current certificates that should have been renewed already."),
		unpromoted: gauge("gpuaas_certificates_unpromoted", "Certificates issued over ten minutes ago and never used."),
		outboxAge:  gauge("gpuaas_outbox_age_seconds", "Age of the oldest message to Temporal that failed and is still to be delivered; 0 without one."),
	}
}

func (c *FleetCollector) gauges() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{c.nodes, c.stateAge, c.stuck, c.leases, c.lifeLeft, c.overdue, c.unpromoted, c.outboxAge}
}

// Describe implements prometheus.Collector.
func (c *FleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range c.gauges() {
		g.Describe(ch)
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
		for _, g := range c.gauges() {
			g.Reset()
		}
		if err := c.read(); err != nil {
			c.log.Warn("cannot read the fleet gauges from the database", slog.Any("err", err))
		}
		c.readAt = time.Now()
	}
	for _, g := range c.gauges() {
		g.Collect(ch)
	}
}

// read sets the gauges. It sets none if a number cannot be read.
func (c *FleetCollector) read() error {
	ctx, cancel := context.WithTimeout(context.Background(), fleetBudget)
	defer cancel()
	nodes, err := c.counts.NodeCounts(ctx)
	if err != nil {
		return err
	}
	stuck, err := c.counts.StuckCounts(ctx)
	if err != nil {
		return err
	}
	tasks, err := c.counts.TaskLeases(ctx)
	if err != nil {
		return err
	}
	certificates, err := c.counts.CertificateCounts(ctx)
	if err != nil {
		return err
	}
	age, err := c.counts.OutboxAge(ctx)
	if err != nil {
		return err
	}
	c.outboxAge.WithLabelValues().Set(age)
	c.setNodes(nodes)
	for _, s := range stuck {
		c.stuck.WithLabelValues(s.Phase, s.Reason).Set(float64(s.Operations))
	}
	for _, s := range []task.Status{task.Pending, task.Dispatched, task.Running, task.Lost} {
		c.leases.WithLabelValues(string(s)).Set(0)
	}
	for _, t := range tasks {
		c.leases.WithLabelValues(string(t.Status)).Set(float64(t.Tasks))
	}
	c.lifeLeft.WithLabelValues().Set(certificates.ShareLeft)
	c.overdue.WithLabelValues().Set(float64(certificates.Overdue))
	c.unpromoted.WithLabelValues().Set(float64(certificates.Unpromoted))
	return nil
}

// setNodes gives every state a series, so that a state without nodes reads 0.
func (c *FleetCollector) setNodes(counts []NodeCount) {
	oldest := map[lifecycle.NodeState]time.Time{}
	for i, n := range counts {
		if at, ok := oldest[n.State]; !ok || n.OldestSince.Before(at) {
			oldest[n.State] = n.OldestSince
		}
		if i >= maxNodeSeries {
			n.SKU, n.Region = "other", "other"
		}
		c.nodes.WithLabelValues(string(n.State), n.SKU, n.Region).Add(float64(n.Nodes))
	}
	for _, s := range lifecycle.NodeStates() {
		at, ok := oldest[s]
		if !ok {
			c.nodes.WithLabelValues(string(s), "", "").Set(0)
			at = time.Now()
		}
		c.stateAge.WithLabelValues(string(s)).Set(max(0, time.Since(at).Seconds()))
	}
}
