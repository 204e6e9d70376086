package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/agent/internal/text"
)

// Limits of the answers of an API server.
const (
	kubePage  = 16       // objects in a page of a list
	kubeBytes = 32 << 20 // of an answer: etcd stores objects of up to 1.5 MiB
	kubeLimit = 2000     // pods on a node, nodes in a list of servers
	// kubeManager identifies the agent's changes in the managed fields of objects.
	kubeManager = "gpuaas-node-agent"
)

// kubeAPI calls the API server of a cluster for one node.
type kubeAPI struct {
	http   *http.Client
	server string
	token  string
	node   string // name of the node's Node object
	// machine is the machine ID of this host, "" if it is not known.
	machine string
}

// kubeError is the API server's refusal of a request.
type kubeError struct {
	status  int
	message string
	budget  string // what a disruption budget says that forbids an eviction, "" for another refusal
}

// Error implements error.
func (e *kubeError) Error() string {
	return fmt.Sprintf("the Kubernetes API server answers %d: %s", e.status, e.message)
}

// kubeStatus returns the status code of a refusal, 0 for another error.
func kubeStatus(err error) int {
	if e, ok := errors.AsType[*kubeError](err); ok {
		return e.status
	}
	return 0
}

// kubeBudget returns what a disruption budget says that forbids an eviction, "" for another
// error.
func kubeBudget(err error) string {
	if e, ok := errors.AsType[*kubeError](err); ok {
		return e.budget
	}
	return ""
}

// unlessKube returns nil instead of a refusal with one of the status codes.
func unlessKube(err error, codes ...int) error {
	if slices.Contains(codes, kubeStatus(err)) {
		return nil
	}
	return err
}

// call sends a request and decodes the answer into out unless it is nil. An answer other than
// 2xx is a *kubeError.
func (a *kubeAPI) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	q, err := http.NewRequestWithContext(ctx, method, a.server+path+"?"+query.Encode(), body)
	if err != nil {
		return err
	}
	a.header(q)
	r, err := a.http.Do(q)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the query
		}
		return fmt.Errorf("cannot reach the Kubernetes API server %s: %s", q.URL.Host, text.Sanitize(text.Truncate(err.Error())))
	}
	defer r.Body.Close()
	data, err := io.ReadAll(io.LimitReader(r.Body, kubeBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("cannot read the answer of the Kubernetes API server: %w", err)
	case len(data) > kubeBytes:
		return fmt.Errorf("the answer of the Kubernetes API server has more than %d bytes", kubeBytes)
	case r.StatusCode/100 != 2:
		return refusalOf(r.StatusCode, a.withoutToken(data))
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return errors.New("unexpected answer of the Kubernetes API server: it cannot be parsed")
	}
	return nil
}

// withoutToken removes the token from a text that a proxy may have made from the request.
func (a *kubeAPI) withoutToken(data []byte) []byte {
	if a.token == "" {
		return data
	}
	return bytes.ReplaceAll(data, []byte(a.token), []byte("[hidden]"))
}

func (a *kubeAPI) header(q *http.Request) {
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", kubeManager)
	switch {
	case q.Method == http.MethodPatch:
		q.Header.Set("Content-Type", "application/merge-patch+json")
	case q.Body != nil:
		q.Header.Set("Content-Type", "application/json")
	}
	if a.token != "" {
		q.Header.Set("Authorization", "Bearer "+a.token)
	}
}

// refusalOf reads the message of a refusal and its causes, or what the server answered instead
// of one.
func refusalOf(status int, body []byte) *kubeError {
	var s struct {
		Message string `json:"message"`
		Details struct {
			Causes []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"causes"`
		} `json:"details"`
	}
	e := kubeError{status: status}
	if err := json.Unmarshal(body, &s); err != nil || s.Message == "" {
		s.Message = strings.TrimSpace(string(body[:min(len(body), kubeMessageBytes)]))
	}
	for _, c := range s.Details.Causes {
		if status == http.StatusTooManyRequests && c.Reason == "DisruptionBudget" {
			e.budget = text.Printable(c.Message, kubeMessageBytes)
		}
		if c.Message != "" && !strings.Contains(s.Message, c.Message) && len(s.Message) < kubeMessageBytes {
			s.Message += " " + c.Message
		}
	}
	e.message = text.Printable(s.Message, kubeMessageBytes)
	return &e
}

// kubeMessageBytes bounds the message of a refusal.
const kubeMessageBytes = 250

// list calls each with the items of every page of a list. It fails if there are more than
// kubeLimit items.
func list[T any](ctx context.Context, a *kubeAPI, path string, query url.Values) (all []T, err error) {
	query.Set("limit", strconv.Itoa(kubePage))
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := a.call(ctx, http.MethodGet, path, query, nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if len(all) > kubeLimit {
			return nil, fmt.Errorf("the Kubernetes API server lists more than %d objects", kubeLimit)
		}
		if page.Metadata.Continue == "" {
			return all, nil
		}
		if len(page.Items) == 0 {
			return nil, errors.New("unexpected answer of the Kubernetes API server: an empty page that is not the last")
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// kubeMeta is the metadata of an object.
type kubeMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

// kubePath is the path of an object or of a collection.
func kubePath(prefix string, parts ...string) string {
	for _, p := range parts {
		prefix += "/" + url.PathEscape(p)
	}
	return prefix
}

const kubeCore = "/api/v1"

// podPath is the path of a pod or of a part of it.
func podPath(p kubePod, parts ...string) string {
	return kubePath(kubeCore, append([]string{"namespaces", p.Metadata.Namespace, "pods", p.Metadata.Name}, parts...)...)
}

// pods lists the pods of the node that have not ended.
func (a *kubeAPI) pods(ctx context.Context) ([]kubePod, error) {
	found, err := list[kubePod](ctx, a, kubeCore+"/pods", url.Values{"fieldSelector": {"spec.nodeName=" + a.node + ",status.phase!=Succeeded,status.phase!=Failed"}})
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		if !validKubeName(p.Metadata.Name) || !validKubeName(p.Metadata.Namespace) || p.Metadata.UID == "" || p.Spec.NodeName != a.node {
			return nil, errors.New("unexpected answer of the Kubernetes API server: a pod without name, namespace or UID, or of another node")
		}
	}
	return found, nil
}

// podOptions are the options of an eviction or a deletion that applies to one pod only, not to
// a later one of the same name.
func podOptions(p kubePod) map[string]any {
	return map[string]any{"preconditions": map[string]string{"uid": p.Metadata.UID}}
}

// evict asks the API server to end a pod within the pod's own grace period, unless a disruption
// budget forbids that now. With dryRun, nothing is changed.
func (a *kubeAPI) evict(ctx context.Context, p kubePod, dryRun bool) error {
	options, query := podOptions(p), url.Values{}
	if dryRun { // for the deletion, and for admission
		options["dryRun"] = []string{"All"}
		query.Set("dryRun", "All")
	}
	return a.call(ctx, http.MethodPost, podPath(p, "eviction"), query, map[string]any{
		"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
		"metadata": kubeMeta{Name: p.Metadata.Name, Namespace: p.Metadata.Namespace},
	}, nil)
}

// deletePod ends a pod at once.
func (a *kubeAPI) deletePod(ctx context.Context, p kubePod) error {
	options := podOptions(p)
	options["apiVersion"], options["kind"], options["gracePeriodSeconds"] = "v1", "DeleteOptions", 0
	return a.call(ctx, http.MethodDelete, podPath(p), nil, options, nil)
}

// deleteNode deletes the node's Node object if it still has a UID.
func (a *kubeAPI) deleteNode(ctx context.Context, uid string) error {
	return a.call(ctx, http.MethodDelete, kubePath(kubeCore, "nodes", a.node), nil,
		map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": uid}}, nil)
}

// readNode reads the node's Node object. It fails if the object describes another machine: a wrong
// name and more than a kubelet's rights would drain that machine.
func (a *kubeAPI) readNode(ctx context.Context) (n kubeNode, err error) {
	err = a.call(ctx, http.MethodGet, kubePath(kubeCore, "nodes", a.node), nil, nil, &n)
	if err == nil && (n.Metadata.Name != a.node || n.Metadata.UID == "") {
		err = errors.New("unexpected answer of the Kubernetes API server: not the requested Node object")
	}
	if id := n.Status.NodeInfo.MachineID; err == nil && id != "" && a.machine != "" && id != a.machine {
		err = fmt.Errorf("the Node object %s is that of another machine: correct GPUAAS_KUBERNETES_NODE", a.node)
	}
	return n, err
}
