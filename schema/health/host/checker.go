package host

import (
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/device"
)

// ReasonNotRead is the reason of every check whose input could not be read. The status is unknown.
const ReasonNotRead = "NotRead"

// Checkers returns all checkers of a host. Each decides whether it applies to a sample. The error is
// one in the tables of the program.
func Checkers() ([]health.Checker[Sample], error) {
	xids, err := device.XIDs()
	if err != nil {
		return nil, err
	}
	sxids, err := device.SXIDs()
	if err != nil {
		return nil, err
	}
	return []health.Checker[Sample]{
		gpuCount(), gpuRecoveryAction(), gpuXID(xids), gpuSXID(sxids), gpuECC(), gpuRowRemap(), gpuNVLink(), gpuThermal(), gpuFan(),
		hostKernel(), hostDisk(), hostClock(), hostMemory(), hostServices(), hostInfiniBand(),
	}, nil
}

// checker is a checker that lists what is wrong. If nothing is, it has one healthy result for the
// node, so that a node without faults has one condition for each checker.
type checker struct {
	name      string
	threshold time.Duration
	// input is what the check reads. The check is unknown while it is missing.
	input Input
	// healthy is the reason if nothing is wrong.
	healthy string
	applies func(Sample) bool
	// faults lists what is wrong: one result for the node or for each component.
	faults func(Sample) []health.Result
}

func (c checker) Name() string             { return c.name }
func (c checker) Threshold() time.Duration { return c.threshold }

// Applies is also true while the input is missing: otherwise a source that hangs would end faults.
func (c checker) Applies(s Sample) bool {
	_, missing := s.Missing[c.input]
	return missing || c.applies(s)
}

func (c checker) Check(s Sample) []health.Result {
	if why, missing := s.Missing[c.input]; missing {
		return []health.Result{{Status: health.Unknown, Reason: ReasonNotRead, Detail: why}}
	}
	if found := c.faults(s); len(found) > 0 {
		return found
	}
	return []health.Result{{Status: health.Healthy, Reason: c.healthy}}
}

// eachGPU returns a check of each GPU that can be read. check returns an empty reason if nothing is
// wrong with the GPU.
func eachGPU(check func(GPU) health.Result) func(Sample) []health.Result {
	return func(s Sample) []health.Result {
		var found []health.Result
		for _, g := range s.GPUs {
			if g.Lost {
				continue
			}
			if r := check(g); r.Reason != "" {
				r.Status, r.Component = health.Unhealthy, g.UUID
				found = append(found, r)
			}
		}
		return found
	}
}

// each returns the faults that check finds in a list. The component of a fault is the name of its item.
func each[T any](list []T, name func(T) string, check func(T) health.Result) (found []health.Result) {
	for _, item := range list {
		if r := check(item); r.Reason != "" {
			r.Component = name(item)
			found = append(found, r)
		}
	}
	return found
}

// anyGPU returns whether a GPU has the figure that a check needs.
func anyGPU(has func(GPU) bool) func(Sample) bool {
	return func(s Sample) bool {
		return slices.ContainsFunc(s.GPUs, has)
	}
}

func isSet(flag *bool) bool { return flag != nil && *flag }

func increase(c *Counter) uint64 {
	if c == nil {
		return 0
	}
	return c.Increase
}

// fault is a result without a component.
func fault(reason string, repair health.Repair, detail string) health.Result {
	return health.Result{Status: health.Unhealthy, Reason: reason, Repair: repair, Detail: detail}
}
