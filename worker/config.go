// Package worker is the gpuaas-worker program: it runs lifecycle workflows and
// their activities. It also prepares an installation (Setup).
//
// Start at run.go. Only wire.go connects adapters to ports.
package worker

import (
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
)

// config is the program's configuration.
type config struct {
	daemon.Common
	daemon.Engines
	ActivitySlots int `env:"GPUAAS_ACTIVITY_SLOTS" help:"Largest number of activities, and of local activities, that run at the same time. Default: twice the number of database connections."`
}

// Check reports faults in the values.
func (c *config) Check(f *daemon.Faults) {
	c.Engines.Check(f)
	f.Check(c.ActivitySlots < 0, "GPUAAS_ACTIVITY_SLOTS must not be negative, for example 20")
}

// defaults returns a configuration with the defaults that depend on the program.
// A worker has no callers, so it needs no lame-duck period.
func defaults() *config {
	return &config{Common: daemon.Common{MetricsAddr: "127.0.0.1:9090", DrainTimeout: 10 * time.Second}}
}
