package trust_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema/trust"
)

func TestCheckAPIURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"https://api.example", "https://api.example:443", "https://localhost:8443", "https://API-1.example:65535"} {
		require.NoError(t, trust.CheckAPIURL(good), good)
	}
	const raw = "a raw IP address does not route to the node API"
	for bad, says := range map[string]string{
		"":                                   "is not set",
		"http://api.example":                 "must start with https://",
		"api.example":                        "must start with https://",
		"https://10.1.2.3":                   raw,
		"https://127.0.0.1:8443":             raw,
		"https://[::1]:8443":                 raw,
		"https://[2001:db8::1]":              raw,
		"https://127.1":                      "must contain a host name",
		"https://[fe80::1%25eth0]":           "must contain a host name",
		"https://user@api.example":           "and nothing else",
		"https://api.example/path":           "and nothing else",
		"https://api.example/":               "and nothing else",
		"https://api.example?x=1":            "and nothing else",
		"https://api.example?":               "and nothing else",
		"https://":                           "must contain a host name",
		"https://a b":                        "is not a URL",
		"https://a%24%28id%29":               "is not a URL",
		"https://a'$(id)'":                   "must contain a host name",
		"https://a\nb":                       "is not a URL",
		"https://api.example:":               "must have a port of 1 to 65535",
		"https://api.example:0":              "must have a port of 1 to 65535",
		"https://api.example:65536":          "must have a port of 1 to 65535",
		"HTTPS://api.example":                "must be spelled https://api.example",
		"https://api.example#":               "must be spelled https://api.example",
		"https://" + strings.Repeat("a", 64): "must contain a host name",
	} {
		assert.ErrorContains(t, trust.CheckAPIURL(bad), says, bad)
	}
}
