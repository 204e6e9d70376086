package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// DefaultDockerHost is the address of the Docker daemon in the form of DOCKER_HOST.
const DefaultDockerHost = "unix:///var/run/docker.sock"

// dockerMinor is the newest minor version of the Docker Engine API 1 that the driver was
// written for. It asks an older daemon in the daemon's own version.
const dockerMinor = 56

// DockerSocket returns the path of the unix socket that host, in the form of DOCKER_HOST,
// names. Other addresses are errors: an agent manages the containers of its own node.
func DockerSocket(host string) (string, error) {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("DOCKER_HOST: %q is not unix:// and an absolute path", text.Truncate(host))
	}
	return path, nil
}

// restartPolicy says when the daemon starts a container again.
type restartPolicy struct {
	Name              string `json:"Name"`
	MaximumRetryCount int    `json:"MaximumRetryCount"`
}

// restarts reports whether the daemon may start the container again.
func (p restartPolicy) restarts() bool { return p.Name != "" && p.Name != "no" }

// container is the part of a container's description that the driver needs.
type container struct {
	ID     string `json:"Id"`
	Name   string `json:"Name"` // begins with a slash
	Config struct {
		StopSignal string `json:"StopSignal"`
	} `json:"Config"`
	HostConfig struct {
		RestartPolicy restartPolicy `json:"RestartPolicy"`
	} `json:"HostConfig"`
	State struct {
		Running   bool      `json:"Running"`
		StartedAt time.Time `json:"StartedAt"`
	} `json:"State"`
}

// name is the container's name as docker ps shows it.
func (c container) name() string { return strings.TrimPrefix(c.Name, "/") }

// dockerError is the daemon's answer to a request that it refused.
type dockerError struct {
	status  int
	message string
}

// Error implements error.
func (e *dockerError) Error() string {
	return fmt.Sprintf("the Docker daemon answers %d: %s", e.status, e.message)
}

// unlessStatus returns nil instead of an answer with one of the status codes.
func unlessStatus(err error, codes ...int) error {
	if e, ok := errors.AsType[*dockerError](err); ok && slices.Contains(codes, e.status) {
		return nil
	}
	return err
}

// dockerAPI calls the Docker Engine API over the daemon's unix socket.
type dockerAPI struct {
	http *http.Client
	// prefix is the version of the API in a path, "" before connect.
	prefix string
}

func newDockerAPI(socket string) dockerAPI {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return dockerAPI{http: &http.Client{
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true},
		Timeout:       commandTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// connect returns the API in the newest version that both sides have. A daemon that was
// replaced may have another one, so each call of the driver asks for it.
func (a dockerAPI) connect(ctx context.Context) (dockerAPI, error) {
	_, header, err := a.call(ctx, http.MethodGet, "/_ping", nil)
	if err != nil {
		return a, err
	}
	version := header.Get("Api-Version")
	major, rest, _ := strings.Cut(version, ".")
	minor, err := strconv.Atoi(rest)
	if major != "1" || err != nil {
		return a, fmt.Errorf("the Docker daemon has an unexpected API version %q", text.Truncate(version))
	}
	a.prefix = "/v1." + strconv.Itoa(min(minor, dockerMinor))
	return a, nil
}

// call sends a request and returns the body and the header of the answer. An answer other
// than 2xx is a *dockerError.
func (a dockerAPI) call(ctx context.Context, method, path string, in any) ([]byte, http.Header, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, nil, err
	}
	if in == nil {
		body = nil
	}
	q, err := http.NewRequestWithContext(ctx, method, "http://docker"+a.prefix+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if in != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	r, err := a.http.Do(q)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the address, which is no real one
		}
		return nil, nil, fmt.Errorf("cannot reach the Docker daemon: %w", err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(io.LimitReader(r.Body, commandBytes+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read the answer of the Docker daemon: %w", err)
	case len(data) > commandBytes:
		return nil, nil, fmt.Errorf("the answer of the Docker daemon has more than %d bytes", commandBytes)
	case r.StatusCode/100 != 2:
		return nil, nil, &dockerError{r.StatusCode, messageOf(data)}
	}
	return data, r.Header, nil
}

// messageOf returns the message of a refusal, or what the daemon answered instead of one.
func messageOf(body []byte) string {
	var m struct {
		Message string `json:"message"`
	}
	if err := json.Unmarshal(body, &m); err != nil || m.Message == "" {
		m.Message = strings.TrimSpace(string(body))
	}
	return text.Sanitize(text.Truncate(m.Message))
}

// read gets a document.
func (a dockerAPI) read(ctx context.Context, path string, out any) error {
	data, _, err := a.call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("unexpected answer of the Docker daemon: %w", err)
	}
	return nil
}

// labeled returns the IDs of the running containers with a label, each with its names.
func (a dockerAPI) labeled(ctx context.Context, label string) (map[string][]string, error) {
	filters, err := json.Marshal(map[string][]string{"label": {label}})
	if err != nil {
		return nil, err
	}
	var list []struct {
		ID    string   `json:"Id"`
		Names []string `json:"Names"`
	}
	if err := a.read(ctx, "/containers/json?filters="+url.QueryEscape(string(filters)), &list); err != nil {
		return nil, err
	}
	names := make(map[string][]string, len(list))
	for _, c := range list {
		if c.ID == "" || len(c.Names) == 0 {
			return nil, errors.New("unexpected answer of the Docker daemon: a container without ID or name")
		}
		names[c.ID] = c.Names
	}
	return names, nil
}

// inspect returns a container; ok is false if there is none.
func (a dockerAPI) inspect(ctx context.Context, id string) (c container, ok bool, err error) {
	err = a.read(ctx, "/containers/"+url.PathEscape(id)+"/json", &c)
	if err != nil {
		return container{}, false, unlessStatus(err, http.StatusNotFound)
	}
	if c.ID != id || c.Name == "" {
		return container{}, false, fmt.Errorf("unexpected answer of the Docker daemon about container %s", text.Truncate(id))
	}
	return c, true, nil
}

// setPolicy changes the restart policy of a container, if there is one.
func (a dockerAPI) setPolicy(ctx context.Context, id string, p restartPolicy) error {
	_, _, err := a.call(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/update", map[string]restartPolicy{"RestartPolicy": p})
	return unlessStatus(err, http.StatusNotFound)
}

// kill sends a signal to a container. A container that does not run is not an error.
func (a dockerAPI) kill(ctx context.Context, id, signal string) error {
	_, _, err := a.call(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/kill?signal="+url.QueryEscape(signal), nil)
	return unlessStatus(err, http.StatusNotFound, http.StatusConflict)
}
