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

// Reasons of this package's errors.
const (
	ReasonSealed          = "vault_sealed"      // an operator must unseal Vault
	ReasonUnreachable     = "vault_unreachable" // no response, or not in time
	ReasonUnhealthy       = "vault_unhealthy"   // a 5xx response, or too many requests
	ReasonDenied          = "vault_denied"      // the policy does not allow the call
	ReasonSecretIDExpires = "secret_id_expires" // the secret ID of the login is about to expire
	ReasonLogin           = "vault_login"       // Vault rejected the credentials of the login

	ReasonNotSaved  = "no_saved_certificate"  // there is no usable server certificate of an earlier process
	ReasonResumed   = "saved_certificate"     // the server certificate is that of an earlier process
	ReasonSaveFails = "certificate_not_saved" // the server certificate cannot be saved for later processes

	ReasonNoSet       = "no_verifier_set" // no verifier set has been checked yet
	ReasonNoKey       = "no_signing_key"  // Vault reports that a key or version does not exist
	ReasonKeyMismatch = "signer_mismatch" // Vault's key differs from the verifier set's
	ReasonKeyRetired  = "signer_retired"  // Vault no longer signs with the verifier set's key
	ReasonBadSet      = "bad_verifier_set"
	ReasonNoLeaseKey  = "no_lease_key" // the lease key has no valid delegation
)

// interpretError converts the error of a call to a *schema.Error. It drops
// Vault's own text, which may repeat the request. Every fault between this
// process and Vault is KindServiceUnavailable, including a rejection of this
// process's credentials: the caller of our API was not rejected.
func (c *conn) interpretError(op string, err error) error {
	if err == nil || errors.Is(err, errAbsent) {
		return err
	}
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e
	}
	response, ok := errors.AsType[*api.ResponseError](err)
	switch {
	case !ok:
		return c.unreachable(op, err)
	case isSealed(response):
		return unavailable(ReasonSealed, "vault operator unseal", "%s: Vault at %s is sealed", op, c.address)
	case response.StatusCode == http.StatusForbidden:
		return unavailable(ReasonDenied, "gpuaas admin setup", "%s: the role's policy in Vault at %s does not allow the call", op, c.address)
	case response.StatusCode >= 500 || slices.Contains([]int{http.StatusTooManyRequests, http.StatusPreconditionFailed}, response.StatusCode):
		return unavailable(ReasonUnhealthy, "vault status", "%s: Vault at %s returned HTTP %d", op, c.address, response.StatusCode)
	}
	return schema.NewError(schema.KindInternal, "%s: Vault at %s returned HTTP %d", op, c.address, response.StatusCode)
}

func (c *conn) unreachable(op string, err error) error {
	const next = "check VAULT_ADDR, and that Vault is running: vault status"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return schema.Wrap(schema.KindServiceUnavailable, context.DeadlineExceeded, "%s: Vault at %s did not respond in time", op, c.address).
			WithReason(ReasonUnreachable).WithNext(next)
	case errors.Is(err, context.Canceled):
		return schema.Wrap(schema.KindServiceUnavailable, context.Canceled, "%s: the call to Vault at %s was canceled", op, c.address)
	}
	e := schema.NewError(schema.KindServiceUnavailable, "%s: cannot reach Vault at %s", op, c.address)
	// Keep only the network's error, never the request that url.Error repeats.
	if u, ok := errors.AsType[*url.Error](err); ok {
		e.Err = u.Err
	}
	return e.WithReason(ReasonUnreachable).WithNext(next)
}

func unavailable(reason, next, format string, args ...any) error {
	return schema.NewError(schema.KindServiceUnavailable, format, args...).WithReason(reason).WithNext(next)
}

// isSealed matches Vault's text, because the status code only means unavailable.
func isSealed(e *api.ResponseError) bool {
	return e.StatusCode == http.StatusServiceUnavailable &&
		slices.ContainsFunc(e.Errors, func(s string) bool { return strings.Contains(s, "sealed") })
}

// isDenied reports whether Vault returned 403: the token is invalid or the policy
// forbids the call.
func isDenied(err error) bool {
	e, ok := errors.AsType[*api.ResponseError](err)
	return ok && e.StatusCode == http.StatusForbidden
}
