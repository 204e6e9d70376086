package main

import (
	"github.com/gpuaas/gpuaas/agent"
	"github.com/gpuaas/gpuaas/deploy/dev/workload"
)

// processDriver selects the workload driver that runs plain processes.
func processDriver() agent.Option {
	return agent.WithDriver(workload.Name, func(c agent.DriverConfig) (agent.Workloads, error) {
		return workload.New(workload.Config{Dir: c.Dir, Cordoned: c.Cordoned, Changed: c.Changed, ReadOnly: c.ReadOnly, Log: c.Log})
	})
}
