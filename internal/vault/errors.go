package vault

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hashicorp/vault/api"

	"github.com/gpuaas/gpuaas/schema"
)

// Reasons of the errors of this package.
const (
	ReasonSealed      = "vault_sealed"      // somebody must unseal Vault
	ReasonUnreachable = "vault_unreachable" // no answer, or not in time
	ReasonUnwell      = "vault_unwell"      // an answer of 5xx, or too busy
	ReasonDenied      = "vault_denied"      // our policy does not allow the call
	ReasonLogin       = "vault_login"       // our credentials were refused

	ReasonNoSet       = "no_verifier_set" // no set was checked yet
	ReasonNoKey       = "no_signing_key"  // Vault says that a key or version is not there
	ReasonKeyMismatch = "signer_mismatch" // Vault's key is not the verifier set's
	ReasonBadSet      = "bad_verifier_set"
)

// interpretError turns what a call returned into a *schema.Error. Vault's own
// text is dropped: it may repeat what was sent. Everything that is wrong between
// us and Vault is KindServiceUnavailable, a refusal of our own credentials too,
// for to our callers' callers it is not they who were refused.
func (c *conn) interpretError(op string, err error) error {
	if err == nil || errors.Is(err, errAbsent) {
		return err
	}
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e
	}
	answer, ok := errors.AsType[*api.ResponseError](err)
	switch {
	case !ok:
		return c.unreachable(op, err)
	case isSealed(answer):
		return c.unavailable(ReasonSealed, "vault operator unseal", "%s: Vault at %s is sealed", op, c.address)
	case answer.StatusCode == http.StatusForbidden:
		return c.unavailable(ReasonDenied, "gpuaas admin setup", "%s: Vault at %s refused it: the role's policy does not allow it", op, c.address)
	case answer.StatusCode >= 500 || slices.Contains([]int{http.StatusTooManyRequests, http.StatusPreconditionFailed}, answer.StatusCode):
		return c.unavailable(ReasonUnwell, "vault status", "%s: Vault at %s answered HTTP %d", op, c.address, answer.StatusCode)
	}
	return schema.Errorf(schema.KindInternal, "%s: Vault at %s answered HTTP %d", op, c.address, answer.StatusCode)
}

func (c *conn) unreachable(op string, err error) error {
	next := "check VAULT_ADDR, and that Vault runs: vault status"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e := schema.NewError(schema.KindServiceUnavailable, "%s: Vault at %s did not answer in time", op, c.address)
		e.Err = context.DeadlineExceeded
		return e.WithReason(ReasonUnreachable).WithNext(next)
	case errors.Is(err, context.Canceled):
		return schema.Wrap(schema.KindServiceUnavailable, context.Canceled, "%s: the call to Vault at %s was cancelled", op, c.address)
	}
	e := schema.NewError(schema.KindServiceUnavailable, "%s: Vault at %s cannot be reached", op, c.address)
	// Of a failed call only the network's own words are kept, never the request.
	if u, ok := errors.AsType[*url.Error](err); ok {
		e.Err = u.Err
	}
	return e.WithReason(ReasonUnreachable).WithNext(next)
}

func (c *conn) unavailable(reason, next, format string, args ...any) error {
	return schema.NewError(schema.KindServiceUnavailable, format, args...).WithReason(reason).WithNext(next)
}

// isSealed reads Vault's text, for the status code says only that it is away.
func isSealed(e *api.ResponseError) bool {
	return e.StatusCode == http.StatusServiceUnavailable &&
		slices.ContainsFunc(e.Errors, func(s string) bool { return strings.Contains(s, "sealed") })
}

// isDenied is true for Vault's 403: the token is dead, or the policy forbids.
func isDenied(err error) bool {
	e, ok := errors.AsType[*api.ResponseError](err)
	return ok && e.StatusCode == http.StatusForbidden
}

// reasonOf returns the reason of a *schema.Error, "" without one.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e.Reason
	}
	return ""
}
