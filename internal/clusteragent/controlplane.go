package clusteragent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// maxResponse bounds a response of the admin API in bytes.
const maxResponse = 4 << 20

// controlPlane is a client of the admin API. Its errors are those of the responses, or of
// KindServiceUnavailable with the reason unreachable if there is no response.
type controlPlane struct {
	url    string
	token  schema.Secret
	client *http.Client
}

// unreachable is the reason of an error without a response.
const unreachable = "unreachable"

// newControlPlane returns a client that trusts the CAs of a file, or those of the system if its path
// is empty.
func newControlPlane(address string, token schema.Secret, caFile string) (*controlPlane, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if caFile != "" {
		raw, err := os.ReadFile(caFile)
		roots := x509.NewCertPool()
		if err == nil && !roots.AppendCertsFromPEM(raw) {
			err = schema.NewError(schema.KindInvalidRequest, "%s has no certificate in PEM", caFile)
		}
		if err != nil {
			return nil, schema.Wrap(schema.KindInvalidRequest, err, "GPUAAS_API_CA_FILE")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &controlPlane{url: strings.TrimRight(address, "/"), token: token, client: &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // another host must not get the token
		}}}, nil
}

// report stores the conditions of the node with this host name. A repeated or older report changes
// nothing and succeeds.
func (c *controlPlane) report(ctx context.Context, host string, r health.Report) error {
	return c.call(ctx, http.MethodPut, nodePath(host)+"/conditions", r, nil)
}

// node returns the node with this host name; of several, the one that is not removed.
func (c *controlPlane) node(ctx context.Context, host string) (n wire.NodeView, err error) {
	err = c.call(ctx, http.MethodGet, nodePath(host), nil, &n)
	return n, err
}

func nodePath(host string) string { return "/api/v1/admin/nodes/" + url.PathEscape(host) }

func (c *controlPlane) call(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(content))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	r.Header.Set("User-Agent", "gpuaas-cluster-agent/"+programVersion())
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := c.client.Do(r)
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the admin API").WithReason(unreachable).
			WithNext("check GPUAAS_API_URL and the network")
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	switch {
	case err != nil:
		return schema.Wrap(schema.KindServiceUnavailable, err, "the response of the admin API").WithReason(unreachable)
	case response.StatusCode >= http.StatusMultipleChoices:
		return refusal(response.StatusCode, raw)
	case out == nil:
		return nil
	}
	return json.Unmarshal(raw, out)
}

// refusal returns the error of a response. One without an envelope is not from the admin API.
func refusal(status int, raw []byte) error {
	var envelope schema.ErrorBody
	if err := json.Unmarshal(raw, &envelope); err != nil || envelope.Error.Code == "" {
		return schema.NewError(schema.KindServiceUnavailable, "the admin API responds %d without an error envelope", status).
			WithReason(unreachable).WithNext("check GPUAAS_API_URL")
	}
	return envelope.AsError()
}
