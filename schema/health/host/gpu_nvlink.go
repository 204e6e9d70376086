package host

import (
	"fmt"
	"time"

	"github.com/gpuaas/gpuaas/schema/health"
)

// The reasons of gpu_nvlink.
const (
	ReasonLinksUp    = "LinksUp"
	ReasonLinkDown   = "LinkDown"
	ReasonLinkErrors = "LinkErrors"
)

// maxLinkErrors is how many new errors of one link are normal within Window.
const maxLinkErrors = 100

// gpuNVLink reports links that are down and links with many new errors.
func gpuNVLink() health.Checker[Sample] {
	return checker{
		name: "gpu_nvlink", threshold: 10 * time.Minute, input: InputGPUs, healthy: ReasonLinksUp,
		applies: anyGPU(func(g GPU) bool { return len(g.Links) > 0 || g.ExpectedLinks > 0 }),
		faults: eachGPU(func(g GPU) health.Result {
			up, expected := 0, max(g.ExpectedLinks, 0)
			var noisy *Link
			for i, l := range g.Links {
				if l.Up {
					up++
				}
				if increase(l.Errors) > maxLinkErrors && noisy == nil {
					noisy = &g.Links[i]
				}
			}
			if expected == 0 {
				expected = len(g.Links)
			}
			switch {
			case up < expected:
				return fault(ReasonLinkDown, health.RepairResetGPU, fmt.Sprintf("%d of %d NVLinks are up", up, expected))
			case noisy != nil:
				return fault(ReasonLinkErrors, health.RepairObserve, fmt.Sprintf("NVLink %d has %d new errors", noisy.ID, noisy.Errors.Increase))
			}
			return health.Result{}
		}),
	}
}
