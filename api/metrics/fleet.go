package metrics

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/stuck"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Counts reads the numbers behind the fleet's gauges. It is the port that the
// store implements.
type Counts interface {
	// NodeCounts returns the numbers of nodes, the largest first.
	NodeCounts(ctx context.Context) ([]NodeCount, error)
	// AgentCounts returns the nodes by the version of their agent, the largest count first.
	AgentCounts(ctx context.Context) ([]AgentCount, error)
	// StuckCounts returns the parked operations by phase and reason.
	StuckCounts(ctx context.Context) ([]StuckCount, error)
	// StuckNodeCounts returns the nodes that need attention by row of the stuck table.
	StuckNodeCounts(ctx context.Context) ([]StuckNodeCount, error)
	// CertificateCounts returns the state of the certificates that nodes hold.
	CertificateCounts(ctx context.Context) (CertificateCounts, error)
	// TaskLeases returns the unfinished tasks by status.
	TaskLeases(ctx context.Context) ([]TaskCount, error)
	// IdentityAttention returns the nodes with a locked identity or an alarm about it.
	IdentityAttention(ctx context.Context) ([]IdentityCount, error)
	// SurplusCounts returns the machines that no instance owns, for each provider that creates
	// machines.
	SurplusCounts(ctx context.Context) ([]SurplusCount, error)
	// ConditionCounts returns the nodes with unhealthy conditions by checker and reason, the largest
	// count first, at most MaxNodeConditions combinations of each node.
	ConditionCounts(ctx context.Context) ([]ConditionCount, error)
	// DriftCounts returns the nodes that differ from their template by template, change and artifact, the
	// largest count first.
	DriftCounts(ctx context.Context) ([]DriftCount, error)
	// RecoveryCounts returns the state of health recovery.
	RecoveryCounts(ctx context.Context) (RecoveryCounts, error)
	// PhaseCounts returns the nodes of health recovery by phase.
	PhaseCounts(ctx context.Context) ([]PhaseCount, error)
	// OutboxAge returns the age of the oldest message to Temporal that failed and
	// is still to be delivered, in seconds, 0 without one.
	OutboxAge(ctx context.Context) (float64, error)
	// TableSizes returns the sizes of the tables.
	TableSizes(ctx context.Context) ([]TableSize, error)
	// RetentionAge returns the seconds since old records were last deleted completely.
	RetentionAge(ctx context.Context) (float64, error)
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
	counts   Counts
	requests func(context.Context) (int, error)          // nil without Temporal
	queue    func(context.Context) ([]QueueCount, error) // nil without Temporal
	leading  func() bool
	log      *slog.Logger
	checkers []string // that this version has

	mu         sync.Mutex
	readAt     time.Time
	gauges     []prometheus.Metric
	versions   *admitted[string]
	conditions *admitted[condition]
}

// NewFleetCollector returns a collector, to be registered by the caller. leading
// reports whether this process publishes the gauges.
func NewFleetCollector(counts Counts, leading func() bool, log *slog.Logger) *FleetCollector {
	return &FleetCollector{counts: counts, leading: leading, log: log,
		versions: newAdmitted[string](maxVersionSeries), conditions: newAdmitted[condition](maxConditionSeries)}
}

// WithCheckers names the checkers of this version. Their conditions get their series first.
func (c *FleetCollector) WithCheckers(names []string) *FleetCollector {
	c.checkers = names
	return c
}

// WithQueue adds the gauges of Temporal's task queue. If count fails, they are absent.
func (c *FleetCollector) WithQueue(count func(context.Context) ([]QueueCount, error)) *FleetCollector {
	c.queue = count
	return c
}

// WithRequests adds the number of requests that no worker has claimed as the row pending. If count
// fails, the row is absent.
func (c *FleetCollector) WithRequests(count func(context.Context) (int, error)) *FleetCollector {
	c.requests = count
	return c
}

// Describe implements prometheus.Collector. It describes nothing, because the gauges
// depend on the database.
func (*FleetCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *FleetCollector) Collect(ch chan<- prometheus.Metric) {
	if !c.leading() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.readAt) > fleetFresh {
		c.gauges = nil
		if err := c.read(); err != nil {
			c.log.Warn("cannot read the fleet gauges from the database", slog.Any("err", err))
		}
		c.readAt = time.Now()
	}
	for _, g := range c.gauges {
		ch <- g
	}
}

// gauge returns the function that adds a series of a gauge.
func (c *FleetCollector) gauge(name, help string, labels ...string) (set func(value float64, labels ...string)) {
	desc := prometheus.NewDesc(name, help, labels, nil)
	return func(value float64, labels ...string) {
		c.gauges = append(c.gauges, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...))
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
	parked, err := c.counts.StuckCounts(ctx)
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
	identities, err := c.counts.IdentityAttention(ctx)
	if err != nil {
		return err
	}
	age, err := c.counts.OutboxAge(ctx)
	if err != nil {
		return err
	}
	if err := c.readTables(ctx); err != nil {
		return err
	}
	if err := c.readSurplus(ctx); err != nil {
		return err
	}
	if err := c.readConditions(ctx); err != nil {
		return err
	}
	if err := c.readStuckNodes(ctx); err != nil {
		return err
	}
	if err := c.readDrift(ctx); err != nil {
		return err
	}
	if err := c.readRecovery(ctx); err != nil {
		return err
	}
	if err := c.readAgents(ctx); err != nil {
		return err
	}
	c.readQueue(ctx)
	c.setNodes(nodes)
	operations := c.gauge("gpuaas_stuck_operations", "Parked and abandoned operations by phase and reason.", "phase", "reason")
	for _, s := range parked {
		operations(float64(s.Operations), s.Phase, s.Reason)
	}
	c.setTasks(tasks)
	c.setIdentities(identities)
	if certificates.Held > 0 {
		c.gauge("gpuaas_certificate_expiry_seconds", "Time until the current certificate of a node that expires first expires; absent without certificates.")(certificates.ExpirySeconds)
	}
	c.gauge("gpuaas_certificate_life_left_ratio", "Remaining share of the lifetime of the current certificate that expires first; 1 without certificates.")(certificates.ShareLeft)
	c.gauge("gpuaas_certificates_overdue", "Current certificates that should have been renewed already.")(float64(certificates.Overdue))
	c.gauge("gpuaas_certificates_unpromoted", "Certificates issued over ten minutes ago and never used.")(float64(certificates.Unpromoted))
	c.gauge("gpuaas_outbox_age_seconds", "Age of the oldest message to Temporal that failed and is still to be delivered; 0 without one.")(age)
	return nil
}

// readTables sets the gauges of the tables and of the deletion of old records.
func (c *FleetCollector) readTables(ctx context.Context) error {
	tables, err := c.counts.TableSizes(ctx)
	if err != nil {
		return err
	}
	age, err := c.counts.RetentionAge(ctx)
	if err != nil {
		return err
	}
	rows := c.gauge("gpuaas_table_rows", "Rows of each table of the database, as Postgres estimates them.", "table")
	bytes := c.gauge("gpuaas_table_bytes", "Size of each table of the database, with its indexes.", "table")
	for _, t := range tables {
		rows(float64(t.Rows), t.Table)
		bytes(float64(t.Bytes), t.Table)
	}
	c.gauge("gpuaas_retention_age_seconds", "Time since old records were last deleted completely.")(age)
	return nil
}

// readStuckNodes gives each row about nodes a series, so that one without nodes reads 0.
func (c *FleetCollector) readStuckNodes(ctx context.Context) error {
	counts, err := c.counts.StuckNodeCounts(ctx)
	if err != nil {
		return err
	}
	nodes := map[string]int64{}
	for _, n := range counts {
		nodes[n.Row] = n.Nodes
	}
	number := c.gauge("gpuaas_stuck_nodes", "Nodes and requests that need attention although no operation of them is parked, by row of the stuck table.", "row")
	for _, r := range stuck.Table() {
		if r.Scope == stuck.ScopeNode {
			number(float64(nodes[r.Name]), r.Name)
		}
	}
	if c.requests == nil {
		return nil
	}
	if waiting, err := c.requests(ctx); err == nil {
		number(float64(waiting), stuck.RowPending)
	}
	return nil
}

// readSurplus gives all classes of each provider a series, so that one without machines reads 0.
func (c *FleetCollector) readSurplus(ctx context.Context) error {
	counts, err := c.counts.SurplusCounts(ctx)
	if err != nil {
		return err
	}
	number := c.gauge("gpuaas_surplus_machines", "Machines at providers that no instance owns, and second machines of instances (duplicate), by provider and class.", "provider", "class")
	for _, n := range counts {
		number(float64(n.Leftovers), n.Provider, string(machine.ClassLeftover))
		number(float64(n.Orphans), n.Provider, string(machine.ClassOrphan))
		number(float64(n.Duplicates), n.Provider, string(machine.ClassDuplicate))
	}
	return nil
}

// readRecovery sets the gauges of health recovery.
func (c *FleetCollector) readRecovery(ctx context.Context) error {
	counts, err := c.counts.RecoveryCounts(ctx)
	if err != nil {
		return err
	}
	open := 0.0
	if counts.BreakerOpen {
		open = 1
	}
	c.gauge("gpuaas_recovery_breaker_open", "1 while the breaker of health recovery stops repairs.")(open)
	c.gauge("gpuaas_recovery_incidents", "Faults of many nodes at once.")(float64(counts.Incidents))
	c.gauge("gpuaas_recovery_unhealthy_nodes", "Nodes in a health phase other than Healthy.")(float64(counts.Nodes))
	c.gauge("gpuaas_recovery_budget_used", "Operations that use the budgets of health recovery.")(float64(counts.Used))
	c.gauge("gpuaas_recovery_budget_blocked_nodes", "Nodes whose repair a budget stops.")(float64(counts.Blocked))
	c.gauge("gpuaas_recovery_unapproved_nodes", "Nodes whose repair does not start because its first rung needs an approval.")(float64(counts.Unapproved))
	c.gauge("gpuaas_recovery_round_age_seconds", "Time since the last round of health recovery; 0 if there was none.")(counts.RoundAge)
	return c.readPhases(ctx)
}

// readPhases gives each phase in which a node has a fault a series, so that one without nodes reads 0.
func (c *FleetCollector) readPhases(ctx context.Context) error {
	counts, err := c.counts.PhaseCounts(ctx)
	if err != nil {
		return err
	}
	phases := map[string]PhaseCount{}
	for _, n := range counts {
		phases[n.Phase] = n
	}
	nodes := c.gauge("gpuaas_recovery_phase_nodes", "Nodes by health phase other than Healthy.", "phase")
	age := c.gauge("gpuaas_recovery_phase_age_seconds", "Time since the oldest node in a health phase entered it.", "phase")
	for _, p := range health.Phases() {
		if name := p.String(); p != health.PhaseHealthy {
			nodes(float64(phases[name].Nodes), name)
			age(phases[name].OldestSeconds, name)
		}
	}
	return nil
}

// setIdentities gives every reason a series, so that one without nodes reads 0.
func (c *FleetCollector) setIdentities(counts []IdentityCount) {
	number := c.gauge("gpuaas_identity_attention", "Nodes with a locked identity, or with an alarm about it in the last 24 hours, by reason.", "reason")
	nodes := map[string]int64{trust.LockedByOperator: 0, trust.LockedBySerial: 0, trust.LockedBySequence: 0, trust.LockedBySessions: 0,
		trust.LockedByToken: 0, trust.AlarmSession: 0, trust.AlarmToken: 0}
	for _, n := range counts {
		nodes[n.Reason] = n.Nodes
	}
	for reason, n := range nodes {
		number(float64(n), reason)
	}
}

// setTasks gives every status a series, so that one without tasks reads 0.
func (c *FleetCollector) setTasks(counts []TaskCount) {
	tasks := map[task.Status]TaskCount{task.Pending: {}, task.Dispatched: {}, task.Running: {}, task.Lost: {}}
	for _, n := range counts {
		tasks[n.Status] = n
	}
	unfinished := c.gauge("gpuaas_task_leases", "Unfinished node tasks by status. Lost tasks wait for their node or an operator.", "state")
	age := c.gauge("gpuaas_task_age_seconds", "Time since the oldest unfinished node task of a status was created; 0 without one.", "state")
	for status, n := range tasks {
		unfinished(float64(n.Tasks), string(status))
		age(n.OldestSeconds, string(status))
	}
}

// setNodes gives every state a series, so that a state without nodes reads 0.
func (c *FleetCollector) setNodes(counts []NodeCount) {
	type series struct{ state, sku, region string }
	oldest, nodes, gpus := map[lifecycle.NodeState]float64{}, map[series]int64{}, map[series]int64{}
	for i, n := range counts {
		oldest[n.State] = max(oldest[n.State], n.OldestSeconds)
		if i >= maxNodeSeries {
			n.SKU, n.Region = other, other
		}
		key := series{string(n.State), n.SKU, n.Region}
		nodes[key] += n.Nodes
		gpus[key] += n.GPUs
	}
	age := c.gauge("gpuaas_state_age_seconds", "Time since the oldest node in a state entered it.", "state")
	for _, s := range lifecycle.NodeStates() {
		if _, ok := oldest[s]; !ok {
			nodes[series{state: string(s)}] = 0
		}
		age(oldest[s], string(s))
	}
	number := c.gauge("gpuaas_nodes", "Nodes by state, SKU and region.", "state", "sku", "region")
	total := c.gauge("gpuaas_gpus", "GPUs of nodes as registered, by state, SKU and region of their node.", "state", "sku", "region")
	for s, n := range nodes {
		number(float64(n), s.state, s.sku, s.region)
		total(float64(gpus[s]), s.state, s.sku, s.region)
	}
}
