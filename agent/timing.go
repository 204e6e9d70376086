package agent

import (
	"time"

	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/wait"
	"github.com/gpuaas/gpuaas/agent/runner"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// timing is every interval of the agent, so that tests can be quick.
type timing struct {
	poll     wait.Range    // backoff of failed polls
	rest     time.Duration // longest sleep of the loop
	pause    time.Duration // from a change of the node to the end of the open poll
	trial    time.Duration // until the first poll of a release on trial
	identity identity.Timing
	task     runner.Timing
}

func defaultTiming() timing {
	return timing{
		trial: task.TrialTime,
		poll:  wait.Range{Min: 500 * time.Millisecond, Max: wire.PollBackoffMax}, rest: time.Minute, pause: time.Second,
		identity: identity.Timing{
			PollTimeout: 55 * time.Second,
			Retry:       wait.Range{Min: 500 * time.Millisecond, Max: wire.PollBackoffMax},
			Refused:     wait.Range{Min: time.Minute, Max: 10 * time.Minute},
			Renewal:     wait.Range{Min: 30 * time.Second, Max: 15 * time.Minute},
			Locked:      wait.Range{Min: time.Minute, Max: wire.LockedPollMax},
			Removed:     wait.Range{Min: 5 * time.Second, Max: 10 * time.Minute},
		},
		task: runner.Timing{Report: wait.Range{Min: wire.ResultBackoffMin, Max: wire.ResultBackoffMax}, Progress: 20 * time.Second, Quick: 250 * time.Millisecond},
	}
}
