package nodeapi

import (
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema"
)

// The limits of downloads in progress, at this process.
const (
	// maxDownloads bounds all of them. The last reservedDownloads are for nodes with a
	// certificate, so that installations cannot keep upgrades from their package.
	maxDownloads      = 64
	reservedDownloads = 16
	// addressDownloads bounds those of a remote address without a certificate, or of an IPv6
	// network of 64 bits, so that one client cannot keep others from installing. A network
	// of 48 bits has siteFactor as many.
	addressDownloads = 8
	// nodeDownloads bounds those of a node: the server may not have noticed yet that the
	// agent canceled one.
	nodeDownloads = 2
	// downloadRetry is when a client over a limit retries.
	downloadRetry = 5 * time.Second
)

// A client that does not read downloadChunk bytes in downloadStall is cut. Each chunk has a
// deadline of its own, because a slow link may need a long time for a whole package.
const (
	downloadChunk = 128 << 10
	downloadStall = 20 * time.Second
)

// Package is an agent package for hosts that are being installed, or the binary of a release.
type Package struct {
	// Path is the archive file, or the binary.
	Path string
	Size int64
}

// downloads counts the downloads in progress.
type downloads struct {
	mu   sync.Mutex
	all  int
	keys map[string]int // by node, address and site
}

func newDownloads() *downloads { return &downloads{keys: map[string]int{}} }

// downloadShare is a limit that a download counts for.
type downloadShare struct {
	key   string
	limit int
}

// enter begins a download that counts for the shares, of a total of at most all. If a limit
// is reached it returns the limit's name, otherwise end must be called once.
func (d *downloads) enter(all int, shares ...downloadShare) (end func(), over string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range shares {
		if d.keys[s.key] >= s.limit {
			return nil, "client_downloads"
		}
	}
	if d.all >= all {
		return nil, "downloads"
	}
	d.all++
	for _, s := range shares {
		d.keys[s.key]++
	}
	return func() { d.leave(shares) }, ""
}

func (d *downloads) leave(shares []downloadShare) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all--
	for _, s := range shares {
		if d.keys[s.key]--; d.keys[s.key] == 0 {
			delete(d.keys, s.key)
		}
	}
}

// servePackage sends an archive or a binary. It contains no secret, and the caller
// verifies its digest.
func (a *API) servePackage(w http.ResponseWriter, r *http.Request) error {
	node := a.certifiedNode(r)
	if err := a.limitPackage(w, r, node); err != nil {
		return err
	}
	p, ok := a.cfg.Packages[r.PathValue("digest")]
	if !ok && a.cfg.Release != nil {
		p, ok = a.cfg.Release(r.PathValue("digest"))
	}
	if !ok {
		return schema.NewError(schema.KindNotFound, "no package with this digest")
	}
	end, over := a.beginDownload(node, remoteHost(r))
	if over != "" {
		a.cfg.Metrics.Limited(over)
		return rateLimited(w, downloadRetry, over)
	}
	defer end()
	f, err := os.Open(p.Path)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "reading the package")
	}
	defer func() { _ = f.Close() }() // read-only
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.FormatInt(p.Size, 10))
	w.WriteHeader(http.StatusOK)
	if err := sendChunks(w, f, p.Size); err != nil {
		panic(http.ErrAbortHandler) // cuts the connection; the caller checks the digest
	}
	return nil
}

// certifiedNode returns the URI of the node whose certificate the request presents, "" without
// a valid one. It does not read the node's row: a package is no secret, and a removed node has
// no more than the share of one node until its certificate expires.
func (a *API) certifiedNode(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	cas, err := a.nodeCAs(r.Context())
	if err != nil {
		return ""
	}
	p, err := certificateCacheOf(r).verify(r.TLS, cas, a.cfg.Now())
	if err != nil || p.id.Env != a.cfg.Env {
		return ""
	}
	return p.id.URI()
}

// limitPackage limits the requests of a node, or of an address if node is "".
func (a *API) limitPackage(w http.ResponseWriter, r *http.Request, node string) error {
	if node == "" {
		return a.limitRemote(w, r)
	}
	return a.cfg.limit(w, a.perNode.requests, node, "node_requests")
}

func (a *API) beginDownload(node, host string) (end func(), over string) {
	if node != "" {
		return a.downloads.enter(maxDownloads, downloadShare{node, nodeDownloads})
	}
	shares := []downloadShare{{limitKey(host), addressDownloads}}
	if site := siteOf(host); site != "" {
		shares = append(shares, downloadShare{site, siteFactor * addressDownloads})
	}
	return a.downloads.enter(maxDownloads-reservedDownloads, shares...)
}

// sendChunks copies size bytes to w, with a deadline for each chunk.
func sendChunks(w http.ResponseWriter, from io.Reader, size int64) error {
	c := http.NewResponseController(w)
	for size > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(downloadStall)) // only a test's recorder does not support deadlines
		n, err := io.CopyN(w, from, min(size, downloadChunk))
		if err != nil {
			return err
		}
		size -= n
	}
	return nil
}
