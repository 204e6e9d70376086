package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Counts is what the gauges need of the database.
type Counts interface {
	// NodeCounts returns the states that have nodes.
	NodeCounts(ctx context.Context) ([]NodeCount, error)
	// StuckCounts returns the parked operations by phase and reason.
	StuckCounts(ctx context.Context) ([]StuckCount, error)
	// CertificateAges returns how long the current certificates still last.
	CertificateAges(ctx context.Context) ([]CertificateAge, error)
	// Unpromoted returns the certificates issued longer ago than olderThan that
	// were never used.
	Unpromoted(ctx context.Context, olderThan time.Duration) ([]UnpromotedCertificate, error)
	// TaskLeases returns the tasks that are not over by status.
	TaskLeases(ctx context.Context) ([]TaskCount, error)
}

// UnpromotedAfter is how long after its issue an unused certificate counts as
// stuck: an agent uses one within seconds.
const UnpromotedAfter = 10 * time.Minute

const (
	censusFresh  = 5 * time.Second // how long a reading serves further scrapes
	censusBudget = 3 * time.Second // how long a scrape may wait for the database
)

// Census is a collector of gauges that are read from the database at a scrape,
// at most once in five seconds. When the database does not answer, the gauges
// are absent: an old number would look like a fact.
type Census struct {
	counts Counts
	log    *slog.Logger

	nodes, stateAge, stuck, leases *prometheus.Desc
	lifeLeft, halfGone, unpromoted *prometheus.Desc

	mu      sync.Mutex
	readAt  time.Time
	reading []prometheus.Metric
}

// NewCensus returns a collector over counts, to be registered by the caller.
func NewCensus(counts Counts, log *slog.Logger) *Census {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &Census{
		counts: counts, log: log,
		nodes:      desc("gpuaas_nodes", "Nodes by state.", "state"),
		stateAge:   desc("gpuaas_state_age_seconds", "How long the node longest in a state has been there.", "state"),
		stuck:      desc("gpuaas_stuck_operations", "Parked operations by phase and reason.", "state", "reason"),
		leases:     desc("gpuaas_task_leases", "Node tasks that are not over, by status; lost ones wait for their node or an operator.", "state"),
		lifeLeft:   desc("gpuaas_certificate_life_left_ratio", "What is left of the life of the current certificate that ends first; 1 without one."),
		halfGone:   desc("gpuaas_certificates_overdue", "Current certificates past the point at which they are renewed."),
		unpromoted: desc("gpuaas_certificates_unpromoted", "Certificates issued over ten minutes ago and never used."),
	}
}

// Describe implements prometheus.Collector.
func (c *Census) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.nodes, c.stateAge, c.stuck, c.leases, c.lifeLeft, c.halfGone, c.unpromoted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Census) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) > censusFresh {
		reading, err := c.read()
		if err != nil {
			c.log.Warn("reading gauges from the database", slog.Any("err", err))
		}
		c.reading, c.readAt = reading, time.Now()
	}
	for _, m := range c.reading {
		ch <- m
	}
}

func (c *Census) read() ([]prometheus.Metric, error) {
	ctx, cancel := context.WithTimeout(context.Background(), censusBudget)
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
	identities, err := c.identityGauges(ctx)
	if err != nil {
		return nil, err
	}
	out := append(c.nodeGauges(nodes), identities...)
	for _, s := range stuck {
		out = append(out, gauge(c.stuck, float64(s.Operations), s.Phase, s.Reason))
	}
	return append(out, c.taskGauges(tasks)...), nil
}

// taskGauges has a row for every status in which a task is not over, so that a
// status which empties goes to 0.
func (c *Census) taskGauges(counts []TaskCount) []prometheus.Metric {
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

// identityGauges shows a fleet that has stopped renewing while there is still
// time, and answers that are never used.
func (c *Census) identityGauges(ctx context.Context) ([]prometheus.Metric, error) {
	ages, err := c.counts.CertificateAges(ctx)
	if err != nil {
		return nil, err
	}
	unused, err := c.counts.Unpromoted(ctx, UnpromotedAfter)
	if err != nil {
		return nil, err
	}
	least, overdue := 1.0, 0
	for _, a := range ages {
		left := max(0, a.Left.Seconds()/max(1, a.Life.Seconds()))
		least = min(least, left)
		if left < trust.RenewAt-trust.RenewJitter {
			overdue++
		}
	}
	return []prometheus.Metric{gauge(c.lifeLeft, least), gauge(c.halfGone, float64(overdue)),
		gauge(c.unpromoted, float64(len(unused)))}, nil
}

// nodeGauges has a row for every state, so that a state which empties goes to 0.
func (c *Census) nodeGauges(counts []NodeCount) []prometheus.Metric {
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
