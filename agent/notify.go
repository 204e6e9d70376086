package agent

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/wait"
)

// stalledAfter is how long the poll loop may be silent before the watchdog is no
// longer notified: longer than any poll with its backoff.
const stalledAfter = 5 * time.Minute

// notifier speaks systemd's sd_notify protocol. Without a socket it does
// nothing.
type notifier struct {
	socket   string
	watchdog time.Duration // 0: none
}

func newNotifier(socket, watchdogUsec string) *notifier {
	n := &notifier{socket: socket}
	if usec, err := strconv.ParseInt(watchdogUsec, 10, 64); err == nil && usec > 0 && socket != "" {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// send is best effort: systemd acts when a message is missing.
func (n *notifier) send(state string) {
	if n.socket == "" {
		return
	}
	// net.Dial accepts an abstract socket in its @name form.
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unixgram", n.socket)
	if err != nil {
		return
	}
	defer conn.Close()
	conn.Write([]byte(state)) //nolint:errcheck // best effort
}

func (n *notifier) ready() { n.send("READY=1") }

func (n *notifier) stopping() { n.send("STOPPING=1") }

// watch notifies systemd's watchdog while the poll loop turns.
func (n *notifier) watch(ctx context.Context, lastLoop *atomic.Int64) {
	if n.watchdog == 0 {
		return
	}
	for wait.Sleep(ctx, n.watchdog/3) == nil {
		if alive(lastLoop, time.Now()) {
			n.send("WATCHDOG=1")
		}
	}
}

// alive reports whether the poll loop turned recently. Enrollment may take
// arbitrarily long, so the agent counts as alive before the first turn.
func alive(lastLoop *atomic.Int64, now time.Time) bool {
	last := lastLoop.Load()
	return last == 0 || now.Sub(time.Unix(0, last)) < stalledAfter
}
