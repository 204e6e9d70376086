package nodeapi

import (
	"net"
	"net/http"
	"net/netip"
)

// remoteHost returns the remote address without its port.
func remoteHost(r *http.Request) string {
	if h, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return h
	}
	return r.RemoteAddr
}

// limitKey is the key of an address in rate limits: the address, or the network of an IPv6
// address, of which one client usually has all.
func limitKey(host string) string {
	if ip, ok := parseRemote(host); ok && ip.Is6() {
		return networkOf(host)
	}
	return host
}

// siteOf returns the /48 that has an IPv6 address, of which one client can have all, and ""
// for an address of IPv4.
func siteOf(host string) string {
	ip, ok := parseRemote(host)
	if !ok || !ip.Is6() {
		return ""
	}
	return netip.PrefixFrom(ip, 48).Masked().String()
}

// networkOf returns the /24 or, for IPv6, the /64 that has the address.
func networkOf(host string) string {
	ip, ok := parseRemote(host)
	if !ok {
		return host
	}
	bits := 24
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked().String()
}

func parseRemote(host string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(host)
	return ip.Unmap().WithZone(""), err == nil
}
