package temporal

import (
	"errors"
	"regexp"
	"strings"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc/codes"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// The reasons with which Setup fails when it may not create something.
const (
	reasonNoNamespace   = "namespace_missing"
	reasonNoAttributes  = "search_attributes_missing"
	reasonForbidden     = "temporal_forbidden"
	reasonUnimplemented = "temporal_unimplemented"
)

// tlsFailed is in the text of every TLS failure, whose code is that of a server that does
// not respond.
const tlsFailed = "tls: "

// closedAfterHandshake matches the text of a connection that the server closes before its
// first HTTP/2 frame. A TLS 1.3 server verifies the client's certificate after the client
// has ended its handshake, and its alert may be lost when the connection breaks.
var closedAfterHandshake = regexp.MustCompile(
	`(server preface|client preface|settings frame|window update): .*(EOF|reset by peer|broken pipe)|write: (broken pipe|connection reset by peer)`)

// interpret gives every error of the SDK a kind. doing describes the call. A rejected
// credential and a throttled call are KindServiceUnavailable too: it is the process that
// Temporal rejects, not the caller of the process, and the same call may succeed later.
func (c *connection) interpret(err error, doing string) error {
	if err == nil {
		return nil
	}
	if e := activities.Typed(err); e != nil {
		return e
	}
	if is[*serviceerror.NamespaceNotFound](err) {
		return schema.NewError(schema.KindServiceUnavailable, "Temporal at %s has no namespace %q", c.address, c.namespace).
			WithReason(reasonNoNamespace).WithNext("gpuaas admin setup")
	}
	unavailable := func(reason, next, format string, args ...any) error {
		return schema.Wrap(schema.KindServiceUnavailable, err, format, args...).WithReason(reason).WithNext(next)
	}
	switch codeOf(err) {
	case codes.NotFound:
		return schema.Wrap(schema.KindNotFound, err, "%s", doing)
	case codes.Unauthenticated:
		return unavailable("temporal_unauthenticated", "check TEMPORAL_API_KEY, TEMPORAL_API_KEY_FILE or the TLS client certificate (docs/temporal.md)",
			"Temporal at %s rejected the credential of this process (%s)", c.address, doing)
	case codes.PermissionDenied:
		return unavailable(reasonForbidden, "set a credential with the role that docs/temporal.md names for this program",
			"Temporal at %s denied a call in namespace %q (%s)", c.address, c.namespace, doing)
	case codes.ResourceExhausted:
		return unavailable("temporal_throttled", "retry later, or raise the limits of the namespace",
			"Temporal at %s throttles namespace %q (%s)", c.address, c.namespace, doing)
	case codes.Unimplemented:
		return unavailable(reasonUnimplemented, "check TEMPORAL_ADDRESS, and the version of Temporal (docs/temporal.md)",
			"the service at %s does not have a call that gpuaas needs (%s)", c.address, doing)
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		if strings.Contains(err.Error(), tlsFailed) {
			return unavailable("temporal_tls", "check the TEMPORAL_TLS_ variables (docs/temporal.md)",
				"the TLS handshake with Temporal at %s failed (%s)", c.address, doing)
		}
		if c.secure && closedAfterHandshake.MatchString(err.Error()) {
			return unavailable("temporal_tls", "check that Temporal is up, and the TEMPORAL_TLS_ variables (docs/temporal.md)",
				"Temporal at %s closed the connection after the TLS handshake; it may require a client certificate (%s)", c.address, doing)
		}
		return unavailable(lifecycle.ReasonTemporalUnreachable, "check TEMPORAL_ADDRESS, or run: gpuaas dev status",
			"Temporal at %s does not respond (%s)", c.address, doing)
	}
	return schema.Wrap(schema.KindInternal, err, "%s", doing)
}

// is reports whether an error of type E is in err's chain.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// codeOf returns the gRPC code of an error of the SDK or the transport.
func codeOf(err error) codes.Code {
	if is[*client.WorkflowUpdateServiceTimeoutOrCanceledError](err) {
		return codes.DeadlineExceeded
	}
	return serviceerror.ToStatus(err).Code()
}
