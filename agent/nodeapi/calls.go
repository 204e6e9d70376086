package nodeapi

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Certificate requests a certificate: enroll, certificates/renew or recover.
func (c *Client) Certificate(ctx context.Context, path string, body any) (wire.EnrollResponse, error) {
	var a wire.EnrollResponse
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: body, correlationID: schema.NewID()}, &a)
	if err == nil && a.Certificate == "" {
		err = schema.NewError(schema.KindServiceUnavailable, "the answer holds no certificate")
	}
	if err == nil {
		c.conf.Clock.Observe(a.ServerTime)
	}
	return a, err
}

// PollResponse is the answer to a poll.
type PollResponse struct {
	// Offer is nil when there is no task.
	Offer *wire.TaskOffer
	// VerifierSet names the newest verifier set, zero when the answer does not.
	VerifierSet trust.VerifierSetRef
	// AuditCheckpoint is the newest checkpoint of the audit trail, as text; empty when
	// the answer has none.
	AuditCheckpoint string
	// ReplaceCheckpoint is true when the server could not verify the checkpoint in the poll.
	ReplaceCheckpoint bool
	// CanceledTasks are tasks whose progress must be reported at once.
	CanceledTasks []string
}

// Poll asks for a task. It does not wait where the timeout is below a second.
func (c *Client) Poll(ctx context.Context, timeout time.Duration, poll wire.PollRequest) (p PollResponse, err error) {
	if timeout >= time.Second {
		poll.WaitSeconds = timeout.Truncate(time.Millisecond).Seconds()
	}
	o := new(wire.TaskOffer)
	a, err := c.do(ctx, call{method: http.MethodPost, path: "/tasks/wait", body: poll, repeatable: true, timeout: timeout + 20*time.Second}, o)
	if err != nil {
		return p, err
	}
	if a.status == http.StatusOK {
		p.Offer = o
	}
	p.VerifierSet, _ = trust.ParseVerifierSetRef(a.header.Get(wire.HeaderVerifierSet)) // zero, as when there is none
	p.AuditCheckpoint = a.header.Get(wire.HeaderAuditCheckpoint)
	p.ReplaceCheckpoint = a.header.Get(wire.HeaderReplaceCheckpoint) == "true"
	if list := a.header.Get(wire.HeaderCanceledTasks); list != "" {
		p.CanceledTasks = strings.Split(list, ",")
	}
	return p, nil
}

// Probe makes the server check the identity. As with every request, the use of a certificate
// that was not used before promotes it.
func (c *Client) Probe(ctx context.Context) error {
	_, err := c.do(ctx, call{method: http.MethodGet, path: "/tasks/wait"}, nil)
	return err
}

// VerifierSets returns the verifier sets above a version, oldest first.
func (c *Client) VerifierSets(ctx context.Context, after int64) (trust.VerifierSets, error) {
	var s trust.VerifierSets
	_, err := c.do(ctx, call{
		method: http.MethodGet, path: "/verifier-sets", query: url.Values{"after": {strconv.FormatInt(after, 10)}},
	}, &s)
	return s, err
}

// Trust returns the current CA bundles, and the certificates of the server that
// sent them.
func (c *Client) Trust(ctx context.Context) (t trust.NodeTrust, chain []*x509.Certificate, err error) {
	a, err := c.do(ctx, call{method: http.MethodGet, path: "/trust"}, &t)
	return t, a.chain, err
}

// Progress extends a task's lease.
func (c *Client) Progress(ctx context.Context, taskID string, p task.Progress, correlationID string) (wire.ProgressResponse, error) {
	var a wire.ProgressResponse
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/progress",
		body: p, correlationID: correlationID,
	}, &a)
	return a, err
}

// IdentityToken asks for the token with which the node enrolls in its next incarnation. The
// task must be one of type task.NewIdentity that the node holds.
func (c *Client) IdentityToken(ctx context.Context, taskID, correlationID string) (t trust.IdentityToken, err error) {
	_, err = c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/identity-token", correlationID: correlationID,
	}, &t)
	return t, err
}

// Result reports a task's result, signed by the certificate's key.
func (c *Client) Result(ctx context.Context, taskID string, r task.Result, correlationID string) error {
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: "/tasks/" + url.PathEscape(taskID) + "/result",
		body: r, correlationID: correlationID, resultOf: taskID,
	}, nil)
	return err
}
