package workload

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// sum identifies the access, to detect that a file changed.
func (a kubeAccess) sum() [sha256.Size]byte {
	return sha256.Sum256(bytes.Join([][]byte{[]byte(a.server.String()), []byte(a.serverName), a.ca, a.cert, a.key, []byte(a.token)}, []byte{0}))
}

// connection makes the API of the access. user is the common name of the client certificate,
// "" without one.
func (a kubeAccess) connection() (api *kubeAPI, user string, err error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: a.serverName}
	if !conf.RootCAs.AppendCertsFromPEM(a.ca) {
		return nil, "", errors.New("kubeconfig: certificate-authority has no certificate")
	}
	if len(a.cert) > 0 {
		pair, err := tls.X509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, "", errors.New("kubeconfig: client-certificate and client-key are not a pair in PEM")
		}
		conf.Certificates = []tls.Certificate{pair}
		user = pair.Leaf.Subject.CommonName
	}
	return &kubeAPI{server: strings.TrimSuffix(a.server.String(), "/"), token: a.token, http: &http.Client{
		Transport:     &http.Transport{TLSClientConfig: conf, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
		Timeout:       commandTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, user, nil
}

// kubeConnections keeps the connection to the API server until a file of the kubeconfig
// changes: client certificates rotate.
type kubeConnections struct {
	path string
	node string // configured name of the Node object, "" for the default
	// machine is the machine ID of this host, "" if it is not known.
	machine string

	mu   sync.Mutex
	sum  [sha256.Size]byte
	last *kubeAPI
}

// nodeUser begins the common name in the client certificate of a kubelet.
const nodeUser = "system:node:"

// connect returns the API server's API for this node.
func (c *kubeConnections) connect() (*kubeAPI, error) {
	access, err := loadKubeconfig(c.path)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := access.sum()
	if c.last != nil && c.sum == sum {
		return c.last, nil
	}
	api, user, err := access.connection()
	if err != nil {
		return nil, err
	}
	if api.node, err = c.nodeName(user); err != nil {
		return nil, err
	}
	api.machine = c.machine
	if c.last != nil {
		c.last.http.CloseIdleConnections()
	}
	c.last, c.sum = api, sum
	return api, nil
}

// machineID returns the ID in a file as /etc/machine-id, which kubelets report too, "" if there is
// none.
func machineID(file string) string {
	raw, err := readBounded(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// nodeName is the configured name, that of the kubelet's certificate, or the host's.
func (c *kubeConnections) nodeName(user string) (name string, err error) {
	name = c.node
	if suffix, ok := strings.CutPrefix(user, nodeUser); ok && name == "" {
		name = suffix
	}
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return "", err
		}
		name = strings.ToLower(name)
	}
	if !validKubeName(name) {
		return "", fmt.Errorf("%q is not the name of a Kubernetes node; set GPUAAS_KUBERNETES_NODE", text.Printable(text.Truncate(name), maxKubeName))
	}
	return name, nil
}

// maxKubeName bounds the bytes of the name of an object.
const maxKubeName = 253

// validKubeName reports whether s may be the name of an object in Kubernetes: a DNS subdomain.
func validKubeName(s string) bool {
	return s != "" && len(s) <= maxKubeName && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.')
	}) && s != "." && s != ".." && !strings.HasPrefix(s, "-")
}
