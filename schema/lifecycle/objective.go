package lifecycle

import "time"

// DurationBounds are the upper bounds of the buckets of gpuaas_operation_duration_seconds, in seconds.
func DurationBounds() []float64 {
	return []float64{0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 48 * 3600}
}

// Objective returns how long an operation of the plan may take: the budgets of its phases, rounded up to a
// bound of DurationBounds, so that the metric can be compared with it.
func (p Plan) Objective() time.Duration {
	var budget time.Duration
	for _, s := range p.Phases {
		budget += s.Budget
	}
	bounds := DurationBounds()
	for _, b := range bounds {
		if limit := time.Duration(b * float64(time.Second)); limit >= budget {
			return limit
		}
	}
	return time.Duration(bounds[len(bounds)-1] * float64(time.Second))
}
