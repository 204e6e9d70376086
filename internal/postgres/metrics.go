package postgres

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collector publishes the counts of pools.
type collector struct {
	pools                      map[string]*DB
	connections, waits, waited *prometheus.Desc
}

// NewCollector returns the metrics of connection pools, which the caller names by their
// purpose.
func NewCollector(pools map[string]*DB) prometheus.Collector {
	return collector{pools,
		prometheus.NewDesc("gpuaas_database_connections", "Connections of a pool to the database, by state: in_use, idle or max.", []string{"pool", "state"}, nil),
		prometheus.NewDesc("gpuaas_database_waits_total", "Calls that waited because every connection of the pool was in use.", []string{"pool"}, nil),
		prometheus.NewDesc("gpuaas_database_wait_seconds_total", "Time that calls waited for a connection of the pool.", []string{"pool"}, nil)}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.connections
	ch <- c.waits
	ch <- c.waited
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for name, pool := range c.pools {
		s := pool.pool.Stat()
		for state, n := range map[string]int32{"in_use": s.AcquiredConns(), "idle": s.IdleConns(), "max": s.MaxConns()} {
			ch <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(n), name, state)
		}
		ch <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(s.EmptyAcquireCount()), name)
		ch <- prometheus.MustNewConstMetric(c.waited, prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds(), name)
	}
}
