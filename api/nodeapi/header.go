package nodeapi

import (
	"net/http"
	"slices"
	"strings"
)

// forwardedIdentity lists the headers in which proxies forward a client
// certificate, normalized by foldHeader. This listener terminates TLS itself, so
// such a header is forged or comes from a misplaced proxy.
//
//nolint:gochecknoglobals // read-only table
var forwardedIdentity = []string{
	"client-cert", "client-cert-chain", "x-client-cert", "x-client-certificate",
	"x-forwarded-client-cert", "x-forwarded-tls-client-cert", "x-forwarded-tls-client-cert-info",
	"x-ssl-client-cert", "ssl-client-cert", "x-ssl-cert", "x-amzn-mtls-clientcert", "x-arr-clientcert",
}

// refuseForwardedIdentity rejects a request with such a header in any spelling.
// Ignoring the header would hide the misconfiguration.
func refuseForwardedIdentity(r *http.Request) error {
	for _, h := range []http.Header{r.Header, r.Trailer} {
		for name := range h {
			if slices.Contains(forwardedIdentity, foldHeader(name)) {
				annotateCertificate(r)
				return invalidRequest("forwarded_identity",
					"this listener verifies client certificates itself and accepts no forwarded identity")
			}
		}
	}
	return nil
}

func foldHeader(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}
