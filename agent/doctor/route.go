package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// timeout bounds each check.
const timeout = 10 * time.Second

// Route is the way to the node API.
type Route struct {
	// URL is the node API's address, as in GPUAAS_API_URL.
	URL          string
	NodeID       string
	CABundlePath string
	// HostsFile maps names to addresses before DNS does, for example /etc/hosts.
	HostsFile string
	// EnvFile is where GPUAAS_API_URL is set.
	EnvFile string
}

// address returns the host and the port of the URL.
func (r Route) address() (host, port string) {
	u, err := url.Parse(r.URL)
	if err != nil {
		return "", ""
	}
	if port = u.Port(); port == "" {
		port = "443"
	}
	return u.Hostname(), port
}

// Host returns the host name of the node API.
func (r Route) Host() string {
	host, _ := r.address()
	return host
}

// Port returns the port of the node API.
func (r Route) Port() string {
	_, port := r.address()
	return port
}

// reissue is the command that gives the node a new bundle.
func (r Route) reissue() string {
	return fmt.Sprintf("on a machine with the gpuaas command: gpuaas node bootstrap-script %s, and run the script here with --force", r.NodeID)
}

// Name checks that the host name has an address.
func (r Route) Name(ctx context.Context) diagnosis.Check {
	host, _ := r.address()
	c := diagnosis.Check{Name: "name", Asked: "the address of " + host}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	mapped := HostsLines(r.HostsFile, host)
	if err != nil {
		return c.Failed(text.Truncate(err.Error()), diagnosis.Network,
			fmt.Sprintf("add the name to DNS or to %s; if the name is wrong, %s", r.HostsFile, r.reissue()))
	}
	answer := strings.Join(addresses, ", ")
	if len(mapped) > 0 {
		answer += fmt.Sprintf("; %s has: %s", r.HostsFile, strings.Join(mapped, "; "))
	}
	return c.OK(text.Truncate(answer))
}

// HostsLines returns the lines of a hosts file that name one of the hosts.
func HostsLines(file string, hosts ...string) []string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(raw)) {
		entry, _, _ := strings.Cut(line, "#")
		fields := strings.Fields(entry)
		if len(fields) > 1 && slices.ContainsFunc(fields[1:], func(name string) bool { return slices.Contains(hosts, name) }) {
			lines = append(lines, strings.Join(fields, " "))
		}
	}
	return lines
}

// Connection checks that the port accepts connections.
func (r Route) Connection(ctx context.Context) diagnosis.Check {
	host, port := r.address()
	address := net.JoinHostPort(host, port)
	c := diagnosis.Check{Name: "connection", Asked: "a TCP connection to " + address}
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return c.Failed(text.Truncate(err.Error()), diagnosis.Ingress,
			"start what listens on this address: the load balancer, or gpuaas-api with this GPUAAS_NODE_ADDR; if the address is wrong, see the check before")
	case err != nil:
		return c.Failed(text.Truncate(err.Error()), diagnosis.Network, "check the route and the firewalls between this node and "+address)
	}
	defer conn.Close()
	return c.OK("connected to " + conn.RemoteAddr().String())
}

// Certificate checks that the server is the one of the CA bundle.
func (r Route) Certificate(ctx context.Context) diagnosis.Check {
	host, port := r.address()
	c := diagnosis.Check{Name: "server certificate", Asked: fmt.Sprintf("a TLS handshake with %s, verified with %s", host, r.CABundlePath)}
	conf, err := r.tls()
	if err != nil {
		return c.Failed(text.Truncate(err.Error()), diagnosis.Node, r.reissue())
	}
	var chain []*x509.Certificate
	conf.InsecureSkipVerify = true // VerifyConnection verifies, after it has kept the chain for the answer
	conf.VerifyConnection = func(s tls.ConnectionState) error {
		chain = s.PeerCertificates
		return verify(conf.RootCAs, host, chain)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err == nil {
		defer conn.Close()
		return c.OK(describe(chain[0]))
	}
	if len(chain) == 0 {
		return c.Failed(early(err), diagnosis.Ingress,
			fmt.Sprintf("check the router and the TLS configuration for %s in the load balancer's log, and openssl s_client -connect %s -servername %s",
				host, net.JoinHostPort(host, port), host))
	}
	return r.untrusted(c, chain[0], err)
}

// tls is a configuration that trusts only the CA bundle.
func (r Route) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(r.CABundlePath)
	if err != nil {
		return nil, err
	}
	host, _ := r.address()
	conf := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12, ServerName: host}
	if !conf.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificate", r.CABundlePath)
	}
	return conf, nil
}

func verify(roots *x509.CertPool, host string, chain []*x509.Certificate) error {
	o := x509.VerifyOptions{Roots: roots, DNSName: host, Intermediates: x509.NewCertPool()}
	for _, between := range chain[1:] {
		o.Intermediates.AddCert(between)
	}
	_, err := chain[0].Verify(o)
	return err
}

// early describes a handshake that ended before the server sent a certificate.
func early(err error) string {
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &record):
		return "the server does not speak TLS on this port"
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
		return "the server ended the connection before it sent a certificate: " + text.Truncate(err.Error())
	}
	return "no certificate: " + text.Truncate(err.Error())
}

// untrusted names why the server's certificate was rejected.
func (r Route) untrusted(c diagnosis.Check, leaf *x509.Certificate, err error) diagnosis.Check {
	answer := text.Truncate(err.Error()) + "; the server sent " + describe(leaf)
	var invalid x509.CertificateInvalidError
	var host x509.HostnameError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return c.Failed(answer, diagnosis.Node, "compare this node's clock with the dates of the certificate: timedatectl; if the clock is right, the certificate must be renewed")
	case errors.As(err, &host):
		return c.Failed(answer, diagnosis.ControlPlane, "add the name to GPUAAS_NODE_API_NAMES of gpuaas admin setup; or another server has this address: check the hosts file and DNS")
	}
	answer += "; " + r.CABundlePath + " has " + r.roots()
	return c.Failed(answer, diagnosis.Operator, "if the server is another one, check the hosts file, DNS and the load balancer; if the CA changed, "+r.reissue())
}

// roots describes the certificates of the CA bundle.
func (r Route) roots() string {
	raw, err := os.ReadFile(r.CABundlePath)
	if err != nil {
		return "none"
	}
	certificates, err := trust.ParseCertificates(string(raw))
	if err != nil {
		return "none that can be read"
	}
	var all []string
	for _, root := range certificates {
		all = append(all, describe(root))
	}
	return strings.Join(all, "; ")
}

// describe names a certificate as openssl x509 does.
func describe(c *x509.Certificate) string {
	f := trust.CertFactsOf(c)
	return fmt.Sprintf("subject %q, issuer %q, valid from %s to %s, SHA-256 %s",
		f.Subject, f.Issuer, text.FormatTime(f.NotBefore), text.FormatTime(f.NotAfter), f.Fingerprint)
}
