package temporal

import (
	"context"
	"errors"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/gpuaas/gpuaas/schema"
)

// reasonSecret is the reason of a call that the guard blocked.
const reasonSecret = "secret_in_temporal"

// guard keeps secrets out of Temporal: everyone with access to the Web UI can read a
// history for as long as it is retained. It blocks the call and does not redact, so
// that a leak is a visible fault. Its errors never contain the secret.
type guard struct{ scanner *scanner }

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
			return schema.Errorf(schema.KindInternal, "a call of %s without a protobuf request", method)
		}
		if err := g.blocked("a call of "+method, g.scanner.findIn(m)); err != nil {
			return err
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
}

// Encode implements converter.PayloadCodec. It is the inner barrier: it fails the call
// that would put a secret into a payload, in the process that made it.
func (g guard) Encode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	for _, p := range payloads {
		if err := g.blocked("a payload", g.scanner.find(p.GetData())); err != nil {
			return nil, err
		}
	}
	return payloads, nil
}

// Decode implements converter.PayloadCodec: Encode changes nothing.
func (guard) Decode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) { return payloads, nil }
