package schema

import (
	"errors"
	"fmt"
	"net/http"
)

// Kind is the kind of a failure: the code of the HTTP error envelope, the type
// of a Temporal application error and the key of the CLI's exit code. Callers
// match kinds, never message texts.
type Kind string

// The error kinds. Kinds lists the status code and exit code of each.
const (
	KindInvalidRequest      Kind = "invalid_request"
	KindUnauthenticated     Kind = "unauthenticated"
	KindInvalidNodeIdentity Kind = "invalid_node_identity"
	KindForbidden           Kind = "forbidden"
	KindNotFound            Kind = "not_found"
	KindNodeInUse           Kind = "node_in_use"
	KindOperationInProgress Kind = "operation_in_progress"
	KindLeaseLost           Kind = "lease_lost"
	KindTokenConsumed       Kind = "token_consumed"
	KindTokenExpired        Kind = "token_expired"
	KindRateLimited         Kind = "rate_limited"
	KindServiceUnavailable  Kind = "service_unavailable"
	KindInternal            Kind = "internal"

	// KindFenced: a write carried an op_seq that is no longer the node's. A
	// newer operation holds the node; the writer must stop.
	KindFenced Kind = "fenced"
	// KindTaskFailed: the node ran the task and reports failure.
	KindTaskFailed Kind = "task_failed"
	// KindTaskRefused: the agent rejected the task (signature, identity,
	// time window, unknown type).
	KindTaskRefused Kind = "task_refused"
	// KindAgentSilent: the node's agent has sent no heartbeat for its
	// limit.
	KindAgentSilent Kind = "agent_silent"
	// KindUnfit: the machine failed its acceptance checks (SKU mismatch, failed
	// probe).
	KindUnfit Kind = "unfit"
	// KindTaskStatus: the node task's status does not allow the decision.
	KindTaskStatus Kind = "task_status"
	// KindDecisionOutdated: the decision names a phase or a park that has ended.
	KindDecisionOutdated Kind = "decision_outdated"
	// KindClaimExpired: the operation could not claim its node in time.
	KindClaimExpired Kind = "claim_expired"
	// KindKeyInUse: the idempotency key belongs to a request with other content.
	KindKeyInUse Kind = "idempotency_key_in_use"
	// KindAlreadyExists: the name belongs to an object with other content.
	KindAlreadyExists Kind = "already_exists"
	// KindProviderRefused: the provider of a machine refuses a request, for a reason that a
	// person must remove; see machine.Problems.
	KindProviderRefused Kind = "provider_refused"
)

// Reasons of KindInvalidNodeIdentity. ReasonNodeLocked is also that of what an operator requests
// and only the node's agent could do.
const (
	ReasonNoCertificate    = "no_certificate"
	ReasonUnknownIssuer    = "unknown_issuer"
	ReasonIssuerRetired    = "issuer_retired"
	ReasonExpired          = "expired"
	ReasonSerialSuperseded = "serial_superseded"
	ReasonNodeLocked       = "node_locked"
	ReasonNodeRemoved      = "node_removed"
	ReasonIdentityMismatch = "identity_mismatch"
	// ReasonResultSignature: the signature of a result does not match the key of
	// the certificate. The agent keeps the result and posts it again.
	ReasonResultSignature = "result_signature"
)

// ReasonActivityClosed is the reason of a KindNotFound for a result whose activity
// has already ended. Such a delivery is a repeat and needs no action.
const ReasonActivityClosed = "activity_closed"

// Exit codes of the CLI.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitRefused     = 3
	ExitNotFound    = 4
	ExitPending     = 5 // timed out or parked; the operation continues
	ExitUnreachable = 6
)

// KindInfo describes how the HTTP API, the CLI and activities treat a kind.
type KindInfo struct {
	Kind Kind
	// HTTP is the status code of the error envelope.
	HTTP int
	// Exit is the CLI's exit code.
	Exit int
	// Retry is true if the same call may succeed later. Activities retry only
	// errors of these kinds.
	Retry bool
	// Means describes the kind in one or two sentences, for operators.
	Means string
}

// Kinds is the table of status codes, exit codes, retries and meanings by kind.
func Kinds() []KindInfo {
	return []KindInfo{
		{KindInvalidRequest, http.StatusBadRequest, ExitRefused, false, "The request is not valid, or the state of the node does not allow it."},
		{KindUnauthenticated, http.StatusUnauthorized, ExitFailed, false, "The request has no token, or a token that is not accepted."},
		{KindInvalidNodeIdentity, http.StatusUnauthorized, ExitFailed, false, "The node's certificate is not accepted."},
		{KindForbidden, http.StatusForbidden, ExitFailed, false, "The role of the token does not allow the request."},
		{KindNotFound, http.StatusNotFound, ExitNotFound, false, "The object or the path does not exist."},
		{KindNodeInUse, http.StatusConflict, ExitRefused, false, "Workloads run on the node."},
		{KindOperationInProgress, http.StatusConflict, ExitRefused, false, "Another operation or rotation is open."},
		{KindLeaseLost, http.StatusConflict, ExitFailed, false, "The lease of the task belongs to another poll, or has ended."},
		{KindTokenConsumed, http.StatusConflict, ExitFailed, false, "The enrollment token was used, replaced or withdrawn."},
		{KindTokenExpired, http.StatusGone, ExitFailed, false, "The enrollment token has expired."},
		{KindRateLimited, http.StatusTooManyRequests, ExitFailed, true, "The caller sends too many requests or has too many streams open. If the response has the header Retry-After, wait that long."},
		{KindServiceUnavailable, http.StatusServiceUnavailable, ExitUnreachable, true, "A service that the request needs does not respond."},
		{KindInternal, http.StatusInternalServerError, ExitFailed, true, "A defect, or a fault without a kind of its own. The log has the cause."},
		{KindFenced, http.StatusConflict, ExitFailed, false, "A newer operation holds the node, or the operation has ended."},
		{KindTaskFailed, http.StatusConflict, ExitFailed, false, "The node ran the task, and the task failed."},
		{KindTaskRefused, http.StatusConflict, ExitFailed, false, "The agent rejected the task and did not run it."},
		{KindAgentSilent, http.StatusServiceUnavailable, ExitFailed, true, "The node's agent sends no heartbeat."},
		{KindUnfit, http.StatusConflict, ExitFailed, false, "The machine failed its acceptance checks."},
		{KindTaskStatus, http.StatusConflict, ExitRefused, false, "The status of the task does not allow the decision."},
		{KindDecisionOutdated, http.StatusConflict, ExitRefused, false, "The decision is about a phase, a park or a version that is over."},
		{KindClaimExpired, http.StatusGone, ExitRefused, false, "The operation could not claim its node in time."},
		{KindKeyInUse, http.StatusConflict, ExitRefused, false, "The idempotency key belongs to another request."},
		{KindAlreadyExists, http.StatusConflict, ExitRefused, false, "The name belongs to an object with other content."},
		{KindProviderRefused, http.StatusConflict, ExitFailed, false, "The provider of the machine rejects the request."},
	}
}

// Info returns the kind's row; an unknown kind is treated as KindInternal.
func (k Kind) Info() KindInfo {
	rows := Kinds()
	for _, r := range rows {
		if r.Kind == k {
			return r
		}
	}
	return KindInternal.Info()
}

// Error is a failure with a kind, a message for operators and an optional
// machine-readable reason within the kind. It never contains a secret.
type Error struct {
	Kind    Kind
	Message string
	// Reason narrows the kind, for example node_removed for
	// KindInvalidNodeIdentity.
	Reason string
	// Next is the command or action that resolves the failure, if there is one.
	Next string
	// Err is the cause. It is only logged and never sent to a client.
	Err error
}

// NewError returns an error of the kind with a formatted message.
func NewError(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of the kind that keeps its cause for errors.Is and logs.
func Wrap(k Kind, err error, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Err: err}
}

// WithReason returns e with its reason set.
func (e *Error) WithReason(reason string) *Error { e.Reason = reason; return e }

// WithNext returns e with the next step set.
func (e *Error) WithNext(next string) *Error { e.Next = next; return e }

// Error implements error: message first, cause after it.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Kind: k}) true for every error of kind k.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && (t.Reason == "" || t.Reason == e.Reason)
}

// KindOf returns the kind of err: KindInternal for an error without one, and ""
// for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// AsError returns err as an *Error, wrapping an error without a kind as
// KindInternal with a message that hides the cause. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: KindInternal, Message: "internal error", Err: err}
}

// ErrorInfo has the fields of an Error that are in the details of a Temporal
// application error. Its type and message have the rest.
type ErrorInfo struct {
	Reason string `json:"reason,omitempty"`
	Next   string `json:"next,omitempty"`
}
