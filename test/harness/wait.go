package harness

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/stack"
)

// eventuallyTimeout bounds Eventually. It is long, because the machine may be busy.
const eventuallyTimeout = time.Minute

// Eventually polls a condition that has no signal to wait for.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	require.Eventually(tb, ok, eventuallyTimeout, 2*time.Millisecond, what)
}

// FreeAddress returns a loopback address without a listener. No outgoing connection
// takes its port.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	port, err := stack.FreePorts(1)
	require.NoError(tb, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
