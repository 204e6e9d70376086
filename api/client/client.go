package client

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/version"
)

// Client calls the admin API. It is safe for concurrent use.
type Client struct {
	api  *adminclient.Client
	wait waitTimes
}

// New returns a client of the admin API at an address such as https://gpuaas.example.com. A path in
// the address is a prefix of the API's paths. It sends no request. Without a token option, requests
// have no token, and the API rejects them as unauthenticated.
//
// An http address of another machine is an error, because anyone on the network could read the
// token; see [WithInsecureHTTP].
func New(address string, options ...Option) (*Client, error) {
	s := settings{userAgent: "gpuaas-go/" + version.Version(), token: noToken, retry: defaultRetries()}
	for _, o := range options {
		if err := o(&s); err != nil {
			return nil, err
		}
	}
	if err := checkAddress(address, s.insecureHTTP); err != nil {
		return nil, err
	}
	transport, err := s.httpClient()
	if err != nil {
		return nil, err
	}
	d := newDoer(transport, s)
	return &Client{api: &adminclient.Client{Server: strings.TrimRight(address, "/") + "/", Client: d}, wait: defaultWait()}, nil
}

// API returns the generated client, which has a method for each endpoint. Its requests have the
// client's token and are sent again as those of Client. An error is an [*Error], that of the context or
// that of the token source. Read the response with [Decode].
func (c *Client) API() *adminclient.Client { return c.api }

func checkAddress(address string, insecure bool) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("the address of the admin API must be https://HOST or https://HOST:PORT")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("the address of the admin API must not contain a user, a query or a fragment")
	case u.Scheme == "http" && !insecure && !isLoopback(u.Hostname()):
		return errors.New("the address of the admin API is not encrypted: use https")
	}
	return nil
}

// isLoopback reports whether a host of a URL is this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// noRedirect makes a redirect the response: it could lead to an unencrypted address, and turns some
// changes into reads.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
