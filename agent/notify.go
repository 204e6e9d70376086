package agent

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
)

// stalledAfter is how long the poll loop may make no progress before the agent stops
// notifying the watchdog. It exceeds any poll with its backoff.
const stalledAfter = 5 * time.Minute

// notify reports the state to systemd, if it started the agent. It is best effort:
// systemd acts when a message is missing.
func notify(state string) {
	_, _ = systemd.SdNotify(false, state)
}

// watchdog notifies systemd's watchdog, if it is enabled, while the poll loop makes
// progress.
func (a *Agent) watchdog(ctx context.Context) {
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	for wait.Sleep(ctx, limit/3) == nil {
		if a.alive(time.Now()) {
			notify(systemd.SdNotifyWatchdog)
		}
	}
}

// alive reports whether the poll loop made progress recently or has not started.
func (a *Agent) alive(now time.Time) bool {
	last := a.lastLoop.Load()
	return last == 0 || now.Sub(time.Unix(0, last)) < stalledAfter
}
