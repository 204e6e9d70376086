package agent

// newHealthMonitor makes the monitor of this machine, unless the dependencies replace it.
func newHealthMonitor(a *Agent) HealthMonitor {
	if a.deps.Health != nil {
		return a.deps.Health
	}
	return noHealth{}
}
