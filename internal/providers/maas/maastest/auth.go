package maastest

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxSkew is the largest difference of an OAuth timestamp (OAuthServer of piston3, which MAAS uses).
const maxSkew = 300 * time.Second

// authorized checks the OAuth header. MAAS accepts a nonce once for a token and timestamp, and
// has no consumer secret, so that the PLAINTEXT signature is "&" and the token's secret.
func (s *Server) authorized(r *http.Request) (problem string) {
	head, ok := strings.CutPrefix(r.Header.Get("Authorization"), "OAuth ")
	if !ok {
		return "Authorization Error: missing starting 'OAuth' from 'Authentication' header"
	}
	got := map[string]string{}
	for pair := range strings.SplitSeq(head, ",") {
		name, quoted, _ := strings.Cut(strings.TrimSpace(pair), "=")
		value, err := url.PathUnescape(strings.Trim(quoted, `"`))
		if err != nil {
			return "Authorization Error: invalid parameter " + name
		}
		got[name] = value
	}
	key := strings.Split(s.Key, ":")
	seconds, err := strconv.ParseInt(got["oauth_timestamp"], 10, 64)
	skew := time.Since(time.Unix(seconds, 0)).Abs()
	nonce := got["oauth_timestamp"] + "/" + got["oauth_nonce"]
	switch {
	case got["oauth_consumer_key"] != key[0]:
		return "Authorization Error: Invalid API key."
	case got["oauth_token"] != key[1]:
		return "Authorization Error: 'Invalid access token.'"
	case got["oauth_signature_method"] != "PLAINTEXT":
		return "Authorization Error: 'Signature method not supported.'"
	case got["oauth_signature"] != "&"+key[2]:
		return "Authorization Error: 'Invalid signature.'"
	case err != nil || skew > maxSkew:
		return "Authorization Error: 'Expired timestamp.'"
	case got["oauth_nonce"] == "" || s.nonces[nonce]:
		return "Authorization Error: 'Nonce already used.'"
	}
	s.nonces[nonce] = true
	return ""
}
