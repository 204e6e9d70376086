package daemon

import (
	"context"
	"log/slog"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify reports the state to systemd. It does nothing where NOTIFY_SOCKET is not
// set.
func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", slog.Any("err", err))
	}
}

// watchdog reports to systemd's watchdog until ctx ends, where it is enabled.
func watchdog(ctx context.Context, log *slog.Logger) {
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("cannot read the watchdog interval", slog.Any("err", err))
	}
	if err != nil || limit == 0 {
		return
	}
	tick := time.NewTicker(limit / 2)
	defer tick.Stop()
	for {
		notify(log, systemd.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
