package vault

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

const (
	// savedFile is the file in Config.StateDir.
	savedFile = "server-certificate.json"
	// maxSaved bounds its size.
	maxSaved = 1 << 20
)

// saved is what a process needs to serve nodes before it has logged in to Vault.
type saved struct {
	V            int      `json:"v"`
	Env          string   `json:"env"`
	Key          string   `json:"key"`          // PEM, PKCS #8
	Certificates string   `json:"certificates"` // PEM, the leaf first
	NodeCAs      savedCAs `json:"node_cas"`
	APICAs       savedCAs `json:"api_cas"`
}

// savedCAs are generations in PEM.
type savedCAs struct {
	Live    string `json:"live"`
	Retired string `json:"retired,omitempty"`
}

// saving keeps Config.StateDir up to date.
type saving struct {
	server tls.Certificate // zero until there is one
	mu     sync.Mutex
	last   []byte
	err    error // of the last write
}

// keep saves the server certificate and the CAs, if they changed. Without the file, only a start
// while Vault is unavailable waits, so a failure is reported and does not stop anything.
func (c *Client) keep() {
	node, api := c.nodeCAs.held.Load(), c.apiCAs.held.Load()
	c.saving.mu.Lock()
	defer c.saving.mu.Unlock()
	if c.conf.StateDir == "" || c.saving.server.Leaf == nil || node == nil || api == nil {
		return
	}
	content, err := encodeSaved(c.conf.Env, c.saving.server, *node, *api)
	if err == nil && bytes.Equal(content, c.saving.last) {
		return
	}
	if err == nil {
		err = writeSaved(c.conf.StateDir, content)
	}
	if c.saving.err = err; err != nil {
		c.conf.Log.Warn("cannot save the server certificate; this process cannot start while Vault is unavailable", "dir", c.conf.StateDir, "err", err)
		return
	}
	c.saving.last = content
}

func writeSaved(path string, content []byte) error {
	dir, err := lockDir(path)
	if err != nil {
		return schema.Wrap(schema.KindInternal, err, "opening the state directory")
	}
	defer dir.Close() //nolint:errcheck // it only holds the lock
	return writeCredential(dir, savedFile, string(content))
}

func encodeSaved(env string, server tls.Certificate, node, api generations) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding the server's key")
	}
	var chain bytes.Buffer
	for _, der := range server.Certificate {
		chain.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	cas := func(g generations) savedCAs {
		return savedCAs{trust.EncodeCertificates(g.live...), trust.EncodeCertificates(g.retired...)}
	}
	content, err := json.Marshal(saved{V: 1, Env: env, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
		Certificates: chain.String(), NodeCAs: cas(node), APICAs: cas(api)})
	if err != nil {
		return nil, schema.Wrap(schema.KindInternal, err, "encoding the server certificate")
	}
	return content, nil
}

// Resume returns a client that has not logged in, with the server certificate and the CAs that an
// earlier process saved in Config.StateDir. It serves what needs no call to Vault, and logs in as
// soon as Vault allows. host is the name by which nodes know this API. A file that is missing,
// that others can read, that is damaged, expired, or not for the environment and the host is
// KindServiceUnavailable with the reason ReasonNotSaved: the process must wait for Vault.
func Resume(c Config, host string) (*Client, error) {
	kept, err := readSaved(c, host, time.Now())
	if err != nil {
		return nil, err
	}
	client, err := newClient(c)
	if err != nil {
		return nil, err
	}
	client.resumed.Store(&kept.server)
	client.nodeCAs.held.Store(&kept.node)
	client.apiCAs.held.Store(&kept.api)
	client.absent.Store(schema.NewError(schema.KindServiceUnavailable, "this process has not logged in to Vault yet"))
	client.spawn(func(ctx context.Context) {
		err := daemon.Retry(ctx, func() error { return client.replaceToken(ctx, "") }, func(err error, _ time.Duration) {
			e := schema.AsError(err)
			client.absent.Store(schema.NewError(e.Kind, "this process has not logged in to Vault since its start: %s", e.Message).
				WithReason(e.Reason).WithNext(e.Next))
		})
		if err == nil {
			client.conf.Log.Info("logged in to Vault", "address", client.address)
			client.keepAlive(ctx)
		}
	})
	watchSecretID(client)
	client.nodeCAs.keepFresh(client, 0)
	client.apiCAs.keepFresh(client, 0)
	return client, nil
}

// kept is a saved file that was verified.
type kept struct {
	server    tls.Certificate
	node, api generations
}

func readSaved(c Config, host string, now time.Time) (kept, error) {
	if c.StateDir == "" {
		return kept{}, notSaved("GPUAAS_STATE_DIR is not set, so no server certificate of an earlier run exists")
	}
	file := filepath.Join(c.StateDir, savedFile)
	raw, err := readPrivate(file)
	if errors.Is(err, fs.ErrNotExist) {
		return kept{}, notSaved("%s does not exist: this process has not run with Vault yet", file)
	}
	if err != nil {
		return kept{}, notSaved("ignored %s: %v", file, err)
	}
	out, err := parseSaved(raw, c.Env, host, now)
	if err != nil {
		return kept{}, notSaved("ignored %s: %v", file, err)
	}
	return out, nil
}

func notSaved(format string, args ...any) error {
	return unavailable(ReasonNotSaved, "make Vault available: vault status; the file is then replaced", format, args...)
}

// readPrivate reads a regular file that only its owner, who is this process's user or root, can
// access.
func readPrivate(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSaved {
		return nil, errors.New("it is not a regular file of at most 1 MiB")
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, errors.New("other users can access it, so its key may be known to them (the mode must be 0600)")
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
		return nil, errors.New("it belongs to another user")
	}
	return io.ReadAll(io.LimitReader(f, maxSaved))
}

// parseSaved verifies the content as an agent verifies the certificate.
func parseSaved(raw []byte, env, host string, now time.Time) (kept, error) {
	var s saved
	if err := schema.DecodeStrict(raw, maxSaved, &s); err != nil || s.V != 1 {
		return kept{}, errors.New("it is damaged, or of another version of this program")
	}
	if s.Env != env {
		return kept{}, errors.New("it is of another environment (GPUAAS_ENV)")
	}
	server, err := tls.X509KeyPair([]byte(s.Certificates), []byte(s.Key))
	if err != nil {
		return kept{}, errors.New("its certificate and key are damaged or do not match")
	}
	out := kept{server: server}
	if out.node, err = s.NodeCAs.parse(); err != nil {
		return kept{}, err
	}
	if out.api, err = s.APICAs.parse(); err != nil {
		return kept{}, err
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, ca := range out.api.live {
		roots.AddCert(ca)
	}
	for _, der := range server.Certificate[1:] {
		if ca, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(ca)
		}
	}
	_, err = server.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return out, err
}

func (s savedCAs) parse() (g generations, err error) {
	if g.live, err = trust.ParseCertificates(s.Live); err == nil {
		g.retired, err = trust.ParseCertificates(s.Retired)
	}
	if err != nil || len(g.live) == 0 {
		return g, errors.New("its CA certificates are damaged")
	}
	return g, nil
}
