package harness

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuaas/gpuaas/test/stack"
)

// Timeout bounds each wait that a correct program ends. It is long, because the
// machine may be busy, and costs nothing unless a test fails.
const Timeout = 2 * time.Minute

// Eventually polls a condition that has no signal to wait for. Its interval grows from
// 2 ms to 50 ms: a short wait stays short, and a long one leaves the processor to what
// the condition waits for.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	poll(tb, ok, Timeout, 2*time.Millisecond, 50*time.Millisecond, what)
}

// Poll polls a condition and fails the test if it does not hold in time.
func Poll(tb testing.TB, ok func() bool, timeout, every time.Duration, what ...any) {
	tb.Helper()
	poll(tb, ok, timeout, every, every, what...)
}

// poll calls a condition on its own goroutine, the test's, so that a failed requirement in
// the condition ends the test at once. In require.Eventually it would end only the goroutine
// of the condition, and the test would wait until the timeout.
func poll(tb testing.TB, ok func() bool, timeout, every, most time.Duration, what ...any) {
	tb.Helper()
	for end := time.Now().Add(timeout); !ok(); every = min(every*3/2, most) {
		if time.Now().After(end) {
			require.FailNow(tb, fmt.Sprintf("the condition did not hold within %s", timeout), what...)
		}
		<-time.After(every)
	}
}

// Receive returns the next value of a channel.
func Receive[T any](tb testing.TB, what string, c <-chan T) T {
	tb.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Timeout):
		require.FailNow(tb, "nothing was received", what)
		panic("unreachable")
	}
}

// NoLeak waits until no goroutine is left but those that options ignore.
func NoLeak(tb testing.TB, options ...goleak.Option) {
	tb.Helper()
	err := goleak.Find(options...) // itself waits a moment
	for end := time.Now().Add(Timeout); err != nil && time.Now().Before(end); {
		err = goleak.Find(options...)
	}
	require.NoError(tb, err)
}

// FreeAddress returns a loopback address without a listener. No outgoing connection
// takes its port.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := stack.FreePorts(1)
	require.NoError(tb, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
