package nodeapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
)

// forwardedIdentity lists the headers by which proxies hand on a client
// certificate, folded by foldHeader. This listener ends TLS itself, so one of
// them is a forgery or a proxy in the wrong place.
func forwardedIdentity() []string {
	return []string{
		"client-cert", "client-cert-chain", "x-client-cert", "x-client-certificate",
		"x-forwarded-client-cert", "x-forwarded-tls-client-cert", "x-forwarded-tls-client-cert-info",
		"x-ssl-client-cert", "ssl-client-cert", "x-ssl-cert", "x-amzn-mtls-clientcert", "x-arr-clientcert",
	}
}

// refuseForwardedIdentity refuses a request that carries such a header in any
// spelling: it is an error to be seen, not one to be ignored.
func refuseForwardedIdentity(r *http.Request) error {
	banned := forwardedIdentity()
	for _, h := range []http.Header{r.Header, r.Trailer} {
		for name := range h {
			if slices.Contains(banned, foldHeader(name)) {
				logCertificate(r)
				return schema.NewError(schema.KindInvalidRequest,
					"this listener verifies certificates itself and takes no forwarded identity").
					WithReason("forwarded_identity")
			}
		}
	}
	return nil
}

func foldHeader(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}
