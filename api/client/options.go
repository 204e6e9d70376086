package client

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
)

// Option configures a [Client].
type Option func(*settings) error

// TokenSource returns the bearer token of the next request. It must be safe for concurrent use.
type TokenSource func() (string, error)

// settings are what the options set.
type settings struct {
	token        TokenSource
	http         *http.Client
	roots        *x509.CertPool
	userAgent    string
	insecureHTTP bool
	retry        retries
}

func noToken() (string, error) { return "", nil }

// WithToken sends a fixed bearer token.
func WithToken(token string) Option {
	return WithTokenSource(func() (string, error) { return token, nil })
}

// WithTokenFile sends the bearer token in a file. The file is read for each request, so that a new
// token takes effect without a restart.
func WithTokenFile(path string) Option {
	return WithTokenSource(func() (string, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		return strings.TrimSpace(string(text)), nil
	})
}

// WithTokenSource sends the token that the source returns for each request.
func WithTokenSource(source TokenSource) Option {
	return func(s *settings) error {
		if source == nil {
			return errors.New("the token source is nil")
		}
		s.token = source
		return nil
	}
}

// WithCAFile trusts only the CA certificates of a PEM file.
func WithCAFile(path string) Option {
	return func(s *settings) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading the CA certificates: %w", err)
		}
		if s.roots = x509.NewCertPool(); !s.roots.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s contains no CA certificate", path)
		}
		return nil
	}
}

// WithHTTPClient sends requests with another HTTP client. It cannot be combined with [WithCAFile].
// Redirects are never followed.
func WithHTTPClient(c *http.Client) Option {
	return func(s *settings) error {
		s.http = c
		return nil
	}
}

// WithUserAgent sets the header User-Agent, for example "fleet-report/1.2".
func WithUserAgent(agent string) Option {
	return func(s *settings) error {
		s.userAgent = agent
		return nil
	}
}

// WithInsecureHTTP allows an http address of another machine. Anyone on the network can read the
// token.
func WithInsecureHTTP() Option {
	return func(s *settings) error {
		s.insecureHTTP = true
		return nil
	}
}

// WithRetries sets how often a request is sent again; 0 is never. The default is 4.
func WithRetries(n int) Option {
	return func(s *settings) error {
		if n < 0 {
			return errors.New("the number of retries must be 0 or greater")
		}
		s.retry.max = n
		return nil
	}
}

// httpClient returns the HTTP client that the options describe.
func (s settings) httpClient() (*http.Client, error) {
	if s.http != nil && s.roots != nil {
		return nil, errors.New("WithHTTPClient and WithCAFile cannot be combined")
	}
	c := http.Client{}
	if s.http != nil {
		c = *s.http
	} else {
		dialer := net.Dialer{Timeout: dialTime}
		c.Transport = newTransport(dialer.DialContext, s.roots)
	}
	c.CheckRedirect = noRedirect
	return &c, nil
}
