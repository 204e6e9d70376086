package text_test

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpuaas/gpuaas/schema/text"
)

func TestIsHost(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	longest := label + "." + label + "." + label + "." + label[2:]
	for _, good := range []string{"gpu-17", "GPU-17.rack4.example.com", "xn--bcher-kva.example", "4gpu", "10.0.0.1", "::1", "2001:db8::17",
		"::ffff:10.0.0.1", label, longest} {
		assert.True(t, text.IsHost(good), good)
	}
	for _, bad := range []string{"", ".", "gpu.", ".gpu", "a..b", "-gpu", "gpu-", "a.-b", "gpu_1", "gpu 1", "gpu\n", "gpü", "gpu\x00", "$(id)", "`id`",
		"a;b", "a'b", `a"b`, "a#b", "a%b", "10.0.0.999", "127.1", "2130706433", "10.0.0.1/8", "[::1]", "10.0.0.1:22", "::1%", "fe80::1%eth0",
		"::1%\necho PWNED #", "::1%$(id)", label + "a", longest + "a", "::1%" + strings.Repeat("a", 250)} {
		assert.False(t, text.IsHost(bad), "%q", bad)
	}
}

// An accepted host has only characters that no shell, URL or table gives a meaning, and
// is an address for the address parser exactly if IsIP says so.
func FuzzIsHost(f *testing.F) {
	for _, s := range []string{"gpu-17", "a.b.c", "10.0.0.1", "::1", "fe80::1%eth0", "::1%\necho PWNED #", "127.1", "a\x00", "-", ""} {
		f.Add(s)
	}
	safe := regexp.MustCompile(`\A[A-Za-z0-9:][A-Za-z0-9.:-]{0,252}\z`)
	f.Fuzz(func(t *testing.T, s string) {
		if !text.IsHost(s) {
			return
		}
		if !safe.MatchString(s) {
			t.Fatalf("accepted %q", s)
		}
		if addr, err := netip.ParseAddr(s); (err == nil) != text.IsIP(s) || err == nil && addr.WithZone("") != addr {
			t.Fatalf("%q is an address: %v %v", s, addr, err)
		}
	})
}
