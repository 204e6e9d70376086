package temporal

import (
	"cmp"
	"context"
	"errors"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
)

// reasonSecret is the reason of a call that the guard blocked.
const reasonSecret = "secret_in_temporal"

// guard keeps secrets out of Temporal: everyone with access to the Web UI can read a
// history for as long as it is retained. It blocks the call and does not redact, so
// that a leak is a visible fault. Its errors never contain the secret.
//
// The completion of a workflow task is redacted instead. Temporal would repeat the task
// without end, and a token typed into the Web UI would stop the operation.
type guard struct{ scanner *secrets.Scanner }

// protect passes every payload and every request of the client through the guard.
func (g guard) protect(opts *client.Options) {
	opts.DataConverter = converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), g)
	// The SDK's interceptors convert errors; this one runs outside of them, so that
	// its error arrives unchanged.
	opts.ConnectionOptions.DialOptions = append(opts.ConnectionOptions.DialOptions, grpc.WithUnaryInterceptor(g.intercept()))
}

// blocked returns the typed error of a call with a secret, nil without one.
func (g guard) blocked(what, found string) error {
	if found == "" {
		return nil
	}
	return schema.NewError(schema.KindInternal, "%s was withheld from Temporal: it contains what looks like %s", what, found).
		WithReason(reasonSecret)
}

// isSecretLeak reports whether the guard blocked a call.
func isSecretLeak(err error) bool {
	return errors.Is(err, &schema.Error{Kind: schema.KindInternal, Reason: reasonSecret})
}

// intercept scans every request before it is sent. It does not scan the caller's
// credentials in the metadata.
func (g guard) intercept() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		m, ok := req.(proto.Message)
		if !ok {
			return schema.NewError(schema.KindInternal, "a call of %s without a protobuf request", method)
		}
		found := g.findIn(m)
		if _, ok := req.(*workflowservice.RespondWorkflowTaskCompletedRequest); ok && found != "" {
			req = g.redacted(m)
			found = g.findIn(req.(proto.Message)) //nolint:forcetypeassert // a copy of m
		}
		if err := g.blocked("a call of "+method, found); err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// Encode implements converter.PayloadCodec. It is the inner barrier: it fails the call
// that would put a secret into a payload, in the process that made it.
func (g guard) Encode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	for _, p := range payloads {
		if err := g.blocked("a payload", g.scanner.Find(p.GetData())); err != nil {
			return nil, err
		}
	}
	return payloads, nil
}

// Decode implements converter.PayloadCodec: Encode changes nothing.
func (guard) Decode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) { return payloads, nil }

// findIn scans every field of a message: failures, headers, search attributes,
// memos, ids, payloads and unknown fields.
func (g guard) findIn(m proto.Message) (found string) {
	// Without a resolver, the bytes of an Any are scanned as they are.
	walk := protorange.Options{Resolver: (*protoregistry.Types)(nil)}
	err := walk.Range(m.ProtoReflect(), func(v protopath.Values) error {
		at := v.Index(-1)
		if at.Step.Kind() == protopath.MapIndexStep {
			found = g.scanner.Find([]byte(at.Step.MapIndex().String()))
		}
		switch value := at.Value.Interface().(type) {
		case string:
			found = cmp.Or(found, g.scanner.Find([]byte(value)))
		case []byte:
			found = cmp.Or(found, g.scanner.Find(value))
		}
		if found != "" {
			return protorange.Terminate
		}
		return nil
	}, nil)
	if err != nil {
		return "unreadable data"
	}
	return found
}
