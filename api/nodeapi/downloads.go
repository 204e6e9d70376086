package nodeapi

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// Limits of the downloads of packages in progress.
const (
	maxDownloads = 32
	// anonymousDownloads is the part of clients without a node's certificate: hosts that are
	// being installed. The rest is for the upgrades of nodes.
	anonymousDownloads = maxDownloads / 2
	// addressDownloads is the part of one remote address, or of one IPv6 network of 64 bits.
	addressDownloads = anonymousDownloads / 4
	// downloadRetry is when a client over a limit retries.
	downloadRetry = 5 * time.Second
	// packageTimeout bounds the download of a package over a slow link.
	packageTimeout = 15 * time.Minute
	// A client that takes longer for a block than blockTimeout ends its download: 2 KiB/s are
	// too slow for any package within packageTimeout.
	downloadBlock = 64 << 10
	blockTimeout  = 30 * time.Second
)

// downloads counts the downloads in progress.
type downloads struct {
	mu        sync.Mutex
	open      int
	anonymous int
	addresses map[string]int
}

func newDownloads() *downloads { return &downloads{addresses: map[string]int{}} }

// begin takes a slot for a node, or for the client of an address. end is nil if there is none.
func (d *downloads) begin(address string, node bool) (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.open >= maxDownloads:
		return nil
	case node:
		d.open++
		return func() { d.finish(func() {}) }
	case d.anonymous >= anonymousDownloads || d.addresses[address] >= addressDownloads:
		return nil
	}
	d.open++
	d.anonymous++
	d.addresses[address]++
	return func() {
		d.finish(func() {
			d.anonymous--
			if d.addresses[address]--; d.addresses[address] == 0 {
				delete(d.addresses, address)
			}
		})
	}
}

func (d *downloads) finish(also func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
	also()
}

// send copies size bytes to the client, each block within blockTimeout.
func send(w http.ResponseWriter, from io.Reader, size int64, timeout time.Duration) error {
	c := http.NewResponseController(w)
	for left := size; left > 0; {
		if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		n, err := io.CopyN(w, from, min(left, downloadBlock))
		if err == nil {
			err = c.Flush() // or the block waits in a buffer
		}
		if err != nil {
			return err
		}
		left -= n
	}
	return c.SetWriteDeadline(time.Time{}) // the connection serves further requests
}
