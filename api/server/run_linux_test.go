package server

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every listener's connections ask a silent peer whether it is there, early and
// often enough to know within 45 s.
func TestASilentPeerIsFound(t *testing.T) {
	ln, err := listen(t.Context(), config{adminAddr: "127.0.0.1:0", nodeAddr: "127.0.0.1:0", metricsAddr: "127.0.0.1:0"})
	require.NoError(t, err)
	defer ln.close()
	for _, l := range []net.Listener{ln.admin, ln.node, ln.metrics} {
		client, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		conn, err := l.Accept()
		require.NoError(t, err)
		raw, err := conn.(syscall.Conn).SyscallConn()
		require.NoError(t, err)
		option := func(level, name int) (v int) {
			require.NoError(t, raw.Control(func(fd uintptr) { v, err = syscall.GetsockoptInt(int(fd), level, name) }))
			require.NoError(t, err)
			return v
		}
		require.Equal(t, 1, option(syscall.SOL_SOCKET, syscall.SO_KEEPALIVE))
		seconds := option(syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE) +
			option(syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL)*option(syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT)
		require.LessOrEqual(t, seconds, 45)
		require.NoError(t, conn.Close())
		require.NoError(t, client.Close())
	}
}
