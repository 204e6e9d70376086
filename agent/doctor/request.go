package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/diagnosis"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// answer is what a request returned.
type answer struct {
	status int
	refuse *schema.Error // nil if the answer is not in the API's format
	date   time.Time     // zero without a Date header
}

// String is what came back.
func (a answer) String() string {
	if a.refuse == nil {
		return fmt.Sprintf("status %d", a.status)
	}
	return fmt.Sprintf("status %d, %s (%s): %s", a.status, text.Truncate(string(a.refuse.Kind)), text.Truncate(a.refuse.Reason), text.Truncate(a.refuse.Message))
}

// Unauthenticated checks, with a request that presents no certificate, that the address leads
// to the node API, which rejects it. It also returns the server's time, zero if it is unknown.
func (r Route) Unauthenticated(ctx context.Context) (diagnosis.Check, time.Time) {
	c := diagnosis.Check{Name: "route", Asked: "GET " + r.probe() + " without a certificate, which the node API rejects"}
	a, err := r.get(ctx, nil)
	switch {
	case apierror.Alert(err) == "tls: certificate required":
		return c.OK("the server requires a certificate"), a.date
	case err != nil:
		return r.unanswered(c, err), a.date
	case a.refuse == nil:
		return r.foreign(c, a), a.date
	case a.refuse.Kind == schema.KindInvalidNodeIdentity || a.refuse.Kind == schema.KindRateLimited:
		return c.OK(a.String()), a.date
	}
	return c.Failed(a.String(), diagnosis.ControlPlane, "see the log of gpuaas-api for this address and time"), a.date
}

// maxRepeats is how often a request is repeated whose connection broke: the alert of a server
// that rejects a certificate may be lost behind the error of the request that is being written.
const maxRepeats = 5

// broke reports whether the server ended the connection without an answer.
func broke(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Authenticated checks that the node API accepts the certificate.
func (r Route) Authenticated(ctx context.Context, certificate *tls.Certificate) diagnosis.Check {
	c := diagnosis.Check{Name: "identity accepted", Asked: "GET " + r.probe() + " with the node's certificate"}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a, err := r.get(ctx, certificate)
	for n := 0; broke(err) && apierror.Alert(err) == "" && n < maxRepeats; n++ {
		a, err = r.get(ctx, certificate)
	}
	switch {
	case apierror.Alert(err) == "tls: unknown certificate authority":
		return c.Failed("the server rejected the certificate: "+apierror.Alert(err), diagnosis.ControlPlane,
			fmt.Sprintf("compare the issuer with trusted_cas of gpuaas node show %s -o json, or with the client CA of the proxy that ends TLS", r.NodeID))
	case apierror.Alert(err) != "":
		return c.Failed("the server rejected the certificate: "+apierror.Alert(err), diagnosis.Node,
			"the agent recovers automatically; to retry at once: systemctl restart gpuaas-node-agent")
	case err != nil:
		return r.unanswered(c, err)
	case a.status == http.StatusNoContent:
		return c.OK("accepted")
	case a.refuse == nil:
		return r.foreign(c, a)
	case a.refuse.Kind == schema.KindRateLimited:
		return c.OK(a.String())
	}
	owner, next := r.rejected(a.refuse)
	return c.Failed(a.String(), owner, next)
}

// rejected maps the reason of a rejection to its owner and the next step.
func (r Route) rejected(e *schema.Error) (diagnosis.Owner, string) {
	show := "gpuaas node show " + r.NodeID
	switch e.Reason {
	case schema.ReasonNoCertificate:
		return diagnosis.Ingress, "a proxy ends TLS in front of the node API: configure it to pass TCP through"
	case schema.ReasonUnknownIssuer:
		return diagnosis.ControlPlane, "compare the issuer with trusted_cas of " + show + " -o json; a replica of gpuaas-api may not have loaded a new CA yet"
	case schema.ReasonExpired, schema.ReasonIssuerRetired:
		return diagnosis.Node, "the agent recovers automatically; to retry at once: systemctl restart gpuaas-node-agent"
	case schema.ReasonSerialSuperseded:
		return diagnosis.Operator, "another certificate of this node is in use, perhaps on a copy of its disk: " + show
	case schema.ReasonNodeLocked:
		return diagnosis.Operator, "an operator locked the identity, or two machines used it: " + show
	case schema.ReasonNodeRemoved:
		return diagnosis.Operator, "the node is removed; to use the machine again, register it"
	case schema.ReasonIdentityMismatch:
		return diagnosis.Node, r.reissue()
	}
	if e.Kind == schema.KindServiceUnavailable || e.Kind == schema.KindInternal {
		return diagnosis.ControlPlane, "gpuaas stuck shows faults of the control plane"
	}
	return diagnosis.Operator, show
}

// foreign describes an answer that is not the node API's.
func (r Route) foreign(c diagnosis.Check, a answer) diagnosis.Check {
	host, _ := r.address()
	switch {
	case a.status >= http.StatusInternalServerError:
		return c.Failed(a.String()+", not from the node API", diagnosis.Ingress, "the proxy has no gpuaas-api that responds: see its log, and readyz of gpuaas-api")
	default:
		return c.Failed(a.String()+", not from the node API", diagnosis.Ingress,
			fmt.Sprintf("another server or another route answers for %s: check GPUAAS_API_URL in %s, %s, DNS, and the routes of the proxy", host, r.EnvFile, r.HostsFile))
	}
}

// unanswered describes a request that had no answer.
func (r Route) unanswered(c diagnosis.Check, err error) diagnosis.Check {
	if broke(err) {
		return c.Failed("the connection ended without an answer: "+text.Truncate(err.Error()), diagnosis.Ingress,
			"see the log of the proxy and of gpuaas-api for this address and time")
	}
	return c.Failed(text.Truncate(err.Error()), diagnosis.Network, "repeat the command; if the answer stays, check the firewalls and the proxy")
}

// probe is the address of the check that the node API offers.
func (r Route) probe() string { return r.URL + "/internal/v1/nodes/" + r.NodeID + "/tasks/wait" }

// get calls the node API once, with a certificate or without one.
func (r Route) get(ctx context.Context, certificate *tls.Certificate) (a answer, err error) {
	conf, err := r.tls()
	if err != nil {
		return a, err
	}
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if certificate == nil {
			return &tls.Certificate{}, nil
		}
		return certificate, nil
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.probe(), nil)
	if err != nil {
		return a, err
	}
	res, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	a.status = res.StatusCode
	a.date, _ = http.ParseTime(res.Header.Get("Date")) // zero if the header is missing
	body, err := io.ReadAll(io.LimitReader(res.Body, wire.MaxBodyBytes))
	if err != nil {
		return a, err
	}
	var e schema.ErrorBody
	if json.Unmarshal(body, &e) == nil && e.Error.Code != "" {
		a.refuse = e.AsError()
	}
	return a, nil
}

// driftPart is the part of the tolerance above which a difference of the clocks is worth a check.
// Clocks that are synchronized, and the time of a request, stay far below it.
const driftPart = 10

// Clock compares the node's clock with the server's time. A difference of more than tolerance is
// a fault. A smaller one is none, but the answer advises to check it.
func Clock(local, server time.Time, tolerance time.Duration) diagnosis.Check {
	c := diagnosis.Check{Name: "clock", Asked: "the server's time, compared with this node's clock"}
	if server.IsZero() {
		return c.Skipped()
	}
	skew := local.Sub(server).Round(time.Second)
	answer := fmt.Sprintf("server %s, this node %s, difference %s", text.FormatTime(server), text.FormatTime(local), skew)
	if skew.Abs() > tolerance {
		return c.Failed(answer, diagnosis.Node, "correct the clock: timedatectl set-ntp true")
	}
	if skew.Abs() > tolerance/driftPart {
		answer += fmt.Sprintf("; the agent tolerates %s, but check time synchronization: timedatectl", tolerance)
	}
	return c.OK(answer)
}
