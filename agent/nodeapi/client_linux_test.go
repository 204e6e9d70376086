package nodeapi

import (
	"crypto/tls"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TCP keepalive detects a vanished peer within 45 s.
func TestDetectHalfOpenConnections(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := NewTransport(&tls.Config{MinVersion: tls.VersionTLS12}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	got := map[int]int{syscall.TCP_KEEPIDLE: 0, syscall.TCP_KEEPINTVL: 0, syscall.TCP_KEEPCNT: 0}
	require.NoError(t, raw.Control(func(fd uintptr) {
		for option := range got {
			n, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, option)
			if err != nil {
				t.Error(err)
			}
			got[option] = n
		}
	}))
	found := got[syscall.TCP_KEEPIDLE] + got[syscall.TCP_KEEPINTVL]*got[syscall.TCP_KEEPCNT]
	require.LessOrEqual(t, time.Duration(found)*time.Second, 45*time.Second)
}
