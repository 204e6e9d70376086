package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// adminBudget bounds one call to the admin API. The start of an operation waits
	// for the workflow's acceptance.
	adminBudget = 30 * time.Second
	// adminTries is the number of attempts of a call that may succeed later.
	adminTries = 6
	// adminAnswer is the maximum size of a response, in bytes.
	adminAnswer = 16 << 20
)

// admin is a client of the admin API with the calls that a fleet needs. Its errors are
// *schema.Error.
type admin struct {
	base, token string
	http        *http.Client
}

func newAdmin(base, token string) *admin {
	return &admin{base: base + "/api/v1/admin", token: token,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: parallel}}}
}

// nodes returns all nodes by host name. It is the fleet's first call and is not
// retried, so that an operator sees a wrong address immediately.
func (a *admin) nodes(ctx context.Context) (map[string]wire.NodeView, error) {
	out := map[string]wire.NodeView{}
	for token := ""; ; {
		var list wire.NodeList
		query := url.Values{"limit": {strconv.Itoa(wire.MaxPage)}, "removed": {"true"}, "page_token": {token}}
		if err := a.once(ctx, http.MethodGet, "/nodes?"+query.Encode(), "", nil, &list); err != nil {
			return nil, err
		}
		for _, n := range list.Nodes {
			out[n.Host] = n
		}
		if token = list.NextPageToken; token == "" {
			return out, nil
		}
	}
}

func (a *admin) register(ctx context.Context, r wire.RegisterNodeRequest) (wire.NodeView, error) {
	var v wire.NodeView
	err := a.post(ctx, "/nodes", "", r, &v)
	return v, err
}

// act starts an action on a node; key is its idempotency key.
func (a *admin) act(ctx context.Context, nodeID, verb, key string, r wire.LifecycleRequest) (wire.LifecycleResponse, error) {
	var v wire.LifecycleResponse
	err := a.post(ctx, "/nodes/"+url.PathEscape(nodeID)+"/"+verb, key, r, &v)
	return v, err
}

// post sends a request and retries it while that may help.
func (a *admin) post(ctx context.Context, path, key string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	for try, wait := 1, time.Second/2; ; try, wait = try+1, 2*wait {
		err := a.once(ctx, http.MethodPost, path, key, body, out)
		if err == nil || try == adminTries || !schema.KindOf(err).Info().Retry || ctx.Err() != nil {
			return err
		}
		if sleep(ctx, around(wait).draw()) != nil {
			return err
		}
	}
}

func (a *admin) once(ctx context.Context, method, path, key string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, adminBudget)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set(wire.HeaderCorrelationID, schema.NewID())
	if key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, key)
	}
	response, err := a.http.Do(req)
	if err != nil {
		e := schema.NewError(schema.KindServiceUnavailable, "the admin API at %s does not respond", a.base).
			WithReason("api_unreachable").WithNext("check GPUAAS_API_URL, or run: gpuaas dev status")
		e.Err = err
		return e
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, adminAnswer))
	if err != nil {
		return schema.Wrap(schema.KindServiceUnavailable, err, "the admin API's response was truncated")
	}
	if response.StatusCode/100 == 2 {
		return json.Unmarshal(text, out)
	}
	var rejected schema.ErrorBody
	if err := json.Unmarshal(text, &rejected); err != nil || rejected.Error.Code == "" {
		return schema.NewError(schema.KindServiceUnavailable, "the admin API responded with %s", response.Status)
	}
	return rejected.AsError()
}

// sleep waits for d. If ctx ends first, it returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// host returns the host name of the i-th node, counted from 0.
func (c Config) host(i int) string { return fmt.Sprintf("%s-%04d", c.Prefix, i+1) }

// labels returns the labels of the i-th node.
func (c Config) labels(i int) map[string]string {
	if c.RackSize == 0 {
		return nil
	}
	return map[string]string{"rack": fmt.Sprintf("%s-r%03d", c.Prefix, i/c.RackSize+1)}
}
