package identity

import (
	"errors"
	"slices"

	"github.com/gpuaas/gpuaas/agent/internal/apierror"
	"github.com/gpuaas/gpuaas/schema"
)

// ErrNone means that there is no usable pair of certificate and key.
var ErrNone = errors.New("no certificate and key")

// ErrIssuer means that the server does not accept the issuer of the identity. It ends the
// handshake before anything is sent.
var ErrIssuer = errors.New("the server does not accept the issuer of this certificate")

// result classifies the outcome of a request for the identity that it presented.
type result int

const (
	// resultOK: nothing; the request may be retried.
	resultOK result = iota
	// resultUnusable: the certificate has expired or its issuer is retired, as
	// the API or its TLS layer reports. Only this leads to recovery.
	resultUnusable
	// resultUnknownIssuer: the API does not recognize the issuer.
	resultUnknownIssuer
	// resultSuperseded: another identity of this node replaced this one.
	resultSuperseded
	// resultLocked: an operator must decide.
	resultLocked
	// resultRemoved: the node is removed.
	resultRemoved
	// resultRefused: any other refusal of the caller.
	resultRefused
)

// classify maps an error to its consequence for the identity.
//
// Of the coded answers, only expired and issuer_retired lead to recovery at once. A
// replica that has not loaded a new CA generation yet answers unknown_issuer to a
// good certificate; where the issuer is retired, the next handshake does not name
// it, and that leads to recovery, and so does an answer that every replica repeats
// (unknownIssuerLimit). serial_superseded never does for a certificate
// that was used once: its holder may be a copy, and a copy must not obtain a new
// certificate. A certificate whose key is still staged was never used; it may be
// requested again, with the same key.
func classify(err error) result {
	switch apierror.Alert(err) {
	case "tls: expired certificate", "tls: unknown certificate authority", "tls: certificate required":
		return resultUnusable
	}
	if errors.Is(err, ErrIssuer) {
		return resultUnusable
	}
	if schema.KindOf(err) != schema.KindInvalidNodeIdentity {
		return resultOK
	}
	known, ok := map[string]result{
		schema.ReasonExpired:          resultUnusable,
		schema.ReasonIssuerRetired:    resultUnusable,
		schema.ReasonUnknownIssuer:    resultUnknownIssuer,
		schema.ReasonSerialSuperseded: resultSuperseded,
		schema.ReasonNodeLocked:       resultLocked,
		schema.ReasonNodeRemoved:      resultRemoved,
	}[schema.AsError(err).Reason]
	if !ok {
		return resultRefused
	}
	return known
}

// isTokenError reports whether the API rejected the token of a request.
func isTokenError(err error) bool {
	return slices.Contains([]schema.Kind{schema.KindUnauthenticated, schema.KindTokenConsumed, schema.KindTokenExpired}, schema.KindOf(err))
}
