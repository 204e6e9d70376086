package daemon

import (
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// envAllowPlaintext is the setting that allows connections without TLS.
const envAllowPlaintext = "GPUAAS_ALLOW_PLAINTEXT"

// local reports whether an address without TLS does not leave the machine: a loopback
// address, or the folder of a Unix socket.
func local(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasPrefix(host, "/") || err == nil && ip.IsLoopback()
}

// Plaintext adds a fault if a connection to the host would use no TLS, unless the host is
// this machine or the setting allows it.
func (e Engines) Plaintext(f *Faults, variable, host string, encrypted bool) {
	f.Check(host != "" && !encrypted && !local(host) && !e.AllowPlaintext,
		"%s: the connection to %s would not be encrypted; use TLS, or set %s=true", variable, host, envAllowPlaintext)
}

// DatabasePlaintext is Plaintext for the URL of a database.
func (e Engines) DatabasePlaintext(f *Faults, variable string, secret schema.Secret) {
	u, err := url.Parse(secret.Reveal())
	if err != nil {
		return // reported as malformed
	}
	hosts, encrypted := databaseHosts(u)
	for _, host := range hosts {
		e.Plaintext(f, variable, host, encrypted)
	}
}

// databaseHosts returns the hosts of a database URL, and whether its connections always
// use TLS. The default of sslmode is prefer, which falls back to plaintext.
func databaseHosts(u *url.URL) (hosts []string, encrypted bool) {
	mode := u.Query().Get("sslmode")
	if mode == "" {
		mode = os.Getenv("PGSSLMODE")
	}
	servers := u.Host
	if in := u.Query().Get("host"); in != "" {
		servers = in
	}
	for server := range strings.SplitSeq(servers, ",") { // each may have a port of its own
		hosts = append(hosts, (&url.URL{Host: server}).Hostname())
	}
	return hosts, slices.Contains([]string{"require", "verify-ca", "verify-full"}, mode)
}

// CheckTemporal returns an error of KindInvalidRequest if the connection to Temporal would
// leave the machine without TLS and the setting does not allow that. It logs which
// connections use TLS.
func (e Engines) CheckTemporal(address string, encrypted bool, log *slog.Logger) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	var f Faults
	e.Plaintext(&f, "TEMPORAL_ADDRESS", host, encrypted)
	if err := f.err(); err != nil {
		return err
	}
	database, _ := url.Parse(e.DatabaseURL.Reveal()) // Load has checked it
	_, databaseTLS := databaseHosts(database)
	log.Info("encryption of connections", slog.Bool("postgres_tls", databaseTLS),
		slog.Bool("vault_tls", strings.HasPrefix(e.VaultAddr, "https:")), slog.Bool("temporal_tls", encrypted))
	return nil
}
