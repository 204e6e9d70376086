package libvirt_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/internal/providers/libvirt"
)

// TestImageServer: it serves three files, and only reads them.
func TestImageServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, file := range []string{libvirt.KernelFile, "boot.ipxe", "secret"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("text of "+file), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, libvirt.InitramfsFile), 0o700))
	server := httptest.NewServer(libvirt.ImageServer(dir).Handler)
	t.Cleanup(server.Close)
	ask := func(method, path string, header ...string) (status int, h http.Header, text string) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
		require.NoError(t, err)
		if len(header) == 2 {
			req.Header.Set(header[0], header[1])
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, resp.Header, string(body)
	}
	kernel := "/" + libvirt.KernelFile
	_, _, script := ask(http.MethodGet, "/boot.ipxe")
	require.Equal(t, "#!ipxe\nkernel vmlinuz initrd=initramfs.cpio console=ttyS0 panic=10 quiet loglevel=3\ninitrd initramfs.cpio\nboot\n", script)
	_, header, text := ask(http.MethodGet, kernel)
	require.Equal(t, "text of vmlinuz", text)
	require.Equal(t, strconv.Itoa(len(text)), header.Get("Content-Length"))
	tag := header.Get("Etag")
	require.NotEmpty(t, tag)
	for name, c := range map[string]struct {
		method, path string
		header       []string
		status       int
	}{
		"head":                  {http.MethodHead, kernel, nil, http.StatusOK},
		"an unchanged file":     {http.MethodGet, kernel, []string{"If-None-Match", tag}, http.StatusNotModified},
		"a part":                {http.MethodGet, kernel, []string{"Range", "bytes=0-3"}, http.StatusPartialContent},
		"a folder":              {http.MethodGet, "/" + libvirt.InitramfsFile, nil, http.StatusNotFound},
		"the list":              {http.MethodGet, "/", nil, http.StatusNotFound},
		"another file":          {http.MethodGet, "/secret", nil, http.StatusNotFound},
		"a path out of it":      {http.MethodGet, "/..%2f" + filepath.Base(dir) + kernel, nil, http.StatusNotFound},
		"a change":              {http.MethodPut, kernel, nil, http.StatusMethodNotAllowed},
		"a removal":             {http.MethodDelete, "/boot.ipxe", nil, http.StatusMethodNotAllowed},
		"a request with a body": {http.MethodPost, kernel, nil, http.StatusMethodNotAllowed},
	} {
		status, _, text := ask(c.method, c.path, c.header...)
		require.Equal(t, c.status, status, name)
		require.NotContains(t, text, "text of secret", name)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, libvirt.KernelFile)))
	status, _, text := ask(http.MethodGet, kernel)
	require.Equal(t, http.StatusNotFound, status)
	require.NotContains(t, text, dir)
}

// pipes is a listener whose connections are pipes.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestImageServerEndsSlowClients: a machine that does not send its request, or does not receive the image, does
// not hold a connection.
func TestImageServerEndsSlowClients(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, libvirt.KernelFile), make([]byte, size), 0o600))
	for name, sent := range map[string]string{
		"request":  "GET /" + libvirt.KernelFile + " HTTP/1.1\r\n",
		"response": "GET /" + libvirt.KernelFile + " HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, listener := libvirt.ImageServer(dir), make(pipes, 1)
				near, far := net.Pipe()
				require.NoError(t, near.SetDeadline(time.Now().Add(2*time.Hour)))
				listener <- far
				go func() { _ = server.Serve(listener) }()
				defer func() { _ = server.Close() }()
				_, err := io.WriteString(near, sent)
				require.NoError(t, err)
				<-time.After(time.Hour) // of the clock of the test
				got, err := io.ReadAll(near)
				require.NoError(t, err, "the server has closed the connection")
				require.Less(t, len(got), size)
			})
		})
	}
}
