package workload

import "github.com/gpuaas/gpuaas/agent/workload"

// NewDriver creates the process driver for an agent's configuration.
func NewDriver(c workload.Config) (workload.Driver, error) {
	return New(Config{Dir: c.Dir, Cordoned: c.Cordoned, Changed: c.Changed, ReadOnly: c.ReadOnly, Log: c.Log})
}
