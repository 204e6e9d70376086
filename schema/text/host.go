package text

import (
	"net/netip"
	"strings"
)

// MaxHost is the most bytes of a host name.
const MaxHost = 253

// IsHost reports whether s is the name of a host: a DNS name or an IP address without
// a zone. Such a name consists of letters, digits, ".", "-" and ":".
func IsHost(s string) bool { return IsIP(s) || IsDNSName(s) }

// IsIP reports whether s is an IP address without a zone. A zone, as in fe80::1%eth0,
// may contain any character.
func IsIP(s string) bool {
	if len(s) > MaxHost {
		return false
	}
	addr, err := netip.ParseAddr(s)
	return err == nil && addr.Zone() == ""
}

// IsDNSName reports whether s is a host name as RFC 1123 defines it: at most 253 bytes,
// in labels of 1 to 63 letters, digits and hyphens that neither start nor end with a
// hyphen. The last label is not a number, so that no resolver reads the name as an IPv4
// address.
func IsDNSName(s string) bool {
	if s == "" || len(s) > MaxHost {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if !IsToken(label, 63, "-") || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		last = label
	}
	return strings.Trim(last, "0123456789") != ""
}
