package kubetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = time.Minute

// Object is any object of the API.
type Object = map[string]any

// Client sends requests to the API server with the credentials of a kubeconfig.
type Client struct {
	url  string
	http *http.Client
}

// StatusError is an answer of the API server with a status of 400 or more.
type StatusError struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Causes []Cause `json:"causes"`
	} `json:"details"`
}

// Cause is a cause of a refusal, such as a disruption budget.
type Cause struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Error implements error.
func (f *StatusError) Error() string {
	return fmt.Sprintf("%d %s: %s %v", f.Code, f.Reason, f.Message, f.Details.Causes)
}

// client returns a client with the client certificate of a kubeconfig that this package wrote.
func (e *engine) client(kubeconfig string) (*Client, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	var config struct {
		Users []struct {
			User struct {
				Certificate string `json:"client-certificate"`
				Key         string `json:"client-key"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	user := config.Users[0].User
	pair, err := tls.LoadX509KeyPair(user.Certificate, user.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(e.ca.cert)
	return &Client{e.url, &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}}, nil
}

// Do sends a request and returns the status of the answer. body, if not nil, is sent as
// JSON; a PATCH sends it as a JSON merge patch. out, if not nil, receives the answer. A
// status of 400 or more is a *StatusError.
func (c *Client) Do(ctx context.Context, method, path string, body, out any) (int, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		content = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		f := &StatusError{Code: answer.StatusCode, Message: string(text)}
		_ = json.Unmarshal(text, f) // else the message is the text
		return answer.StatusCode, f
	}
	if out == nil {
		return answer.StatusCode, nil
	}
	return answer.StatusCode, json.Unmarshal(text, out)
}

// Admin returns the path of a kubeconfig of an administrator.
func (c *Cluster) Admin() string { return c.engine.admin }

// NodeKubeconfig returns the path of a kubeconfig with the credentials of a node's
// kubelet: the user system:node:NAME in the group system:nodes.
func (c *Cluster) NodeKubeconfig(tb testing.TB, name string) string {
	tb.Helper()
	return c.node(tb, name).Kubeconfig
}

// AsAdmin returns a client with the credentials of an administrator.
func (c *Cluster) AsAdmin() *Client { return c.engine.api }

// AsNode returns a client with the credentials of a node's kubelet.
func (c *Cluster) AsNode(tb testing.TB, name string) *Client {
	tb.Helper()
	client, err := c.engine.client(c.NodeKubeconfig(tb, name))
	require.NoError(tb, err)
	return client
}

// ServiceAccount returns the path of a kubeconfig with the token of a service account.
func (c *Cluster) ServiceAccount(tb testing.TB, namespace, name string) string {
	tb.Helper()
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	c.Do(tb, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token",
		Object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": Object{}}, &answer)
	file := c.engine.ca.file(namespace+"-"+name, "token")
	require.NoError(tb, os.WriteFile(file, []byte(answer.Status.Token), 0o600))
	path, err := c.engine.ca.kubeconfig(c.engine.url, namespace+"-"+name, "{tokenFile: "+file+"}")
	require.NoError(tb, err)
	return path
}

// Do sends a request as an administrator. Any failure ends the test.
func (c *Cluster) Do(tb testing.TB, method, path string, body, out any) {
	tb.Helper()
	_, err := c.engine.api.Do(context.WithoutCancel(tb.Context()), method, path, body, out) // cleanups use it
	require.NoError(tb, err, "%s %s", method, path)
}

// Apply creates the objects of a YAML or JSON document, which --- separates.
func (c *Cluster) Apply(tb testing.TB, text string) {
	tb.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o Object
		require.NoError(tb, yaml.Unmarshal([]byte(document), &o))
		c.Create(tb, o)
	}
}

// Create creates an object.
func (c *Cluster) Create(tb testing.TB, o Object) {
	tb.Helper()
	c.Do(tb, http.MethodPost, collection(o), o, nil)
}

// collection returns the path of the list that an object belongs to.
func collection(o Object) string {
	version, _ := o["apiVersion"].(string) // the server rejects an object without one
	kind, _ := o["kind"].(string)
	path := "/apis/" + version
	if !strings.Contains(version, "/") {
		path = "/api/" + version
	}
	meta, _ := o["metadata"].(Object)
	if namespace, ok := meta["namespace"].(string); ok {
		path += "/namespaces/" + namespace
	}
	plural := strings.ToLower(kind) + "s"
	if strings.HasSuffix(kind, "s") {
		plural = strings.ToLower(kind) + "es"
	}
	return path + "/" + plural
}
