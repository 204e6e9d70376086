package nodeapi

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One address has a part of the slots, all clients without a certificate have half of them, and
// nodes always have the rest.
func TestDownloadSlots(t *testing.T) {
	t.Parallel()
	d := newDownloads()
	var ends []func()
	take := func(address string, node bool) (n int) {
		for {
			end := d.begin(address, node)
			if end == nil {
				return n
			}
			ends = append(ends, end)
			n++
		}
	}
	require.Equal(t, 4, take("192.0.2.1", false))
	require.Equal(t, 4, take("192.0.2.2", false))
	require.Equal(t, 4, take("192.0.2.3", false)+take("192.0.2.3", false))
	require.Equal(t, 4, take("192.0.2.4", false))
	require.Zero(t, take("192.0.2.5", false))
	require.Equal(t, 16, take("192.0.2.1", true))
	for _, end := range ends {
		end()
	}
	require.Equal(t, newDownloads(), d)
}

// A client that stops to read is cut off after the time for a block. One that reads slowly, each
// block in time, gets everything.
func TestDownloadOfASlowReader(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	const timeout = time.Second
	ended := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		err := send(w, bytes.NewReader(content), int64(len(content)), timeout)
		ended <- err
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	get := func() net.Conn {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		return conn
	}
	get() // and never reads
	require.Error(t, <-ended)

	slow := get()
	tick := time.NewTicker(timeout / 50)
	defer tick.Stop()
	var got int
	for block := make([]byte, len(content)/100); got < len(content); { // longer than the timeout in all
		<-tick.C
		n, err := io.ReadFull(slow, block[:min(len(block), len(content)-got)])
		require.NoError(t, err)
		got += n
	}
	require.NoError(t, <-ended)
}
