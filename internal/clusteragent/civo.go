package clusteragent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/text"
)

const (
	// civoTimeout bounds each request to Civo.
	civoTimeout = 30 * time.Second
	// maxCivoBody bounds a response in bytes, and maxCivoError the part of it that an error repeats.
	maxCivoBody  = 8 << 20
	maxCivoError = 200
)

// CivoExecutor restarts instances through Civo's REST API.
type CivoExecutor struct {
	clusterID, apiURL, region, version string
	apiKey                             schema.Secret
	client                             *http.Client
}

// CivoOption configures a CivoExecutor.
type CivoOption func(*CivoExecutor)

// WithAPIConfig sets the credentials of the API and its URL, for example https://api.civo.com.
// Region may be empty; version is that of the program, for the User-Agent header.
func WithAPIConfig(apiKey schema.Secret, apiURL, region, version string) CivoOption {
	return func(e *CivoExecutor) {
		e.apiKey, e.apiURL, e.region, e.version = apiKey, strings.TrimRight(apiURL, "/"), region, version
	}
}

// WithClient sets the HTTP client. Defaults to a client that follows no redirects.
func WithClient(client *http.Client) CivoOption {
	return func(e *CivoExecutor) { e.client = client }
}

// NewCivoExecutor returns an Executor for the instances of one cluster. Its error is of
// KindInvalidRequest and names the value that is missing or wrong.
func NewCivoExecutor(clusterID string, options ...CivoOption) (*CivoExecutor, error) {
	e := &CivoExecutor{clusterID: clusterID, client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // another host must not get the key
	}}}
	for _, o := range options {
		o(e)
	}
	for _, v := range []struct{ name, value string }{{"cluster ID", e.clusterID}, {"API key", e.apiKey.Reveal()}, {"API URL", e.apiURL}} {
		if v.value == "" {
			return nil, schema.NewError(schema.KindInvalidRequest, "the %s of Civo must not be empty", v.name)
		}
	}
	return e, checkURL("the API URL of Civo", e.apiURL)
}

// checkURL rejects a URL to which a credential must not be sent: other schemes, and HTTP to another
// machine.
func checkURL(name, value string) error {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return schema.NewError(schema.KindInvalidRequest, "%s must be a URL without a user, for example https://api.example.com", name)
	}
	if host := u.Hostname(); u.Scheme == "http" && host != "localhost" && host != "127.0.0.1" && host != "::1" {
		return schema.NewError(schema.KindInvalidRequest, "%s must be an https URL: over http, anyone on the network could read the credential", name)
	}
	return nil
}

// Reboot implements Executor with a hard reboot of the instance whose host name is the node's name.
func (e *CivoExecutor) Reboot(ctx context.Context, node string) error {
	id, err := e.instance(ctx, node)
	if err != nil {
		return fmt.Errorf("finding the instance of node %s: %w: %w", node, ErrNotRebooted, err)
	}
	err = e.call(ctx, http.MethodPost, "/v2/instances/"+url.PathEscape(id)+"/hard_reboots", map[string]string{"region": e.region}, nil)
	if _, refused := errors.AsType[*refusedError](err); refused {
		return fmt.Errorf("rebooting instance %s: %w: %w", id, ErrNotRebooted, err)
	}
	if err != nil {
		return fmt.Errorf("rebooting instance %s: %w", id, err)
	}
	return nil
}

// instance returns the ID of the cluster's only instance with this host name.
func (e *CivoExecutor) instance(ctx context.Context, node string) (string, error) {
	var all []struct {
		ID       string `json:"id"`
		Hostname string `json:"hostname"`
	}
	path := "/v2/kubernetes/clusters/" + url.PathEscape(e.clusterID) + "/instances"
	if err := e.call(ctx, http.MethodGet, path, nil, &all); err != nil {
		return "", err
	}
	var ids []string
	for _, i := range all {
		if i.Hostname == node && i.ID != "" {
			ids = append(ids, i.ID)
		}
	}
	if len(ids) != 1 {
		return "", schema.NewError(schema.KindNotFound, "%s have the host name %s in cluster %s",
			text.Count(len(ids), "instance"), node, text.Line(e.clusterID, 64))
	}
	return ids[0], nil
}

// refusedError is a response that shows that the request had no effect.
type refusedError struct {
	status int
	body   string
}

// Error implements error.
func (r *refusedError) Error() string { return fmt.Sprintf("Civo responds %d: %s", r.status, r.body) }

// call sends a request and decodes the response. A response with a status of 300 to 499 is a
// *refusedError; after other errors, the request may have had an effect.
func (e *CivoExecutor) call(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, civoTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, e.apiURL+path, nil)
	if err != nil {
		return err
	}
	if body != nil {
		content, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
		r.Header.Set("Content-Type", "application/json")
	} else if e.region != "" {
		r.URL.RawQuery = url.Values{"region": {e.region}}.Encode()
	}
	r.Header.Set("Authorization", "bearer "+e.apiKey.Reveal())
	r.Header.Set("User-Agent", "gpuaas-cluster-agent/"+e.version)
	response, err := e.client.Do(r)
	if err != nil {
		return err // it has the URL, not the headers
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxCivoBody))
	switch status := response.StatusCode; {
	case status >= http.StatusInternalServerError:
		return fmt.Errorf("Civo responds %d: %s", status, e.line(content)) //nolint:staticcheck // a name
	case status >= http.StatusMultipleChoices:
		return &refusedError{status, e.line(content)}
	case err != nil || out == nil:
		return err
	}
	return json.Unmarshal(content, out)
}

// line returns a response for an error: one line, without the key.
func (e *CivoExecutor) line(content []byte) string {
	return text.Line(strings.ReplaceAll(string(content), e.apiKey.Reveal(), "…"), maxCivoError)
}
