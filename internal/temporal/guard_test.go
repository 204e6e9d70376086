package temporal

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	protocolpb "go.temporal.io/api/protocol/v1"
	querypb "go.temporal.io/api/query/v1"
	updatepb "go.temporal.io/api/update/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/secrets"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// registered is a secret without a recognizable form, registered with the guard.
const registered = "correct-horse-battery-staple"

// leaks are texts with a secret of each kind that the guard gets to see first.
func leaks() []string {
	token, _, _ := trust.NewToken()
	return []string{token, trust.APITokenPrefix + rand.Text(), base64.StdEncoding.EncodeToString([]byte("x" + token)), registered}
}

func testGuard() guard {
	return guard{secrets.New(schema.NewSecret(registered))}
}

// TestEveryFieldIsScanned plants a secret into fields of every kind of a
// request.
func TestEveryFieldIsScanned(t *testing.T) {
	t.Parallel()
	g := testGuard()
	secret, _, _ := trust.NewToken()
	payload := &commonpb.Payload{Data: []byte(`"` + secret + `"`)}
	fields := map[string]*commonpb.Payload{"k": payload}
	unknown := &workflowservice.SignalWorkflowExecutionRequest{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), secret))
	for name, m := range map[string]proto.Message{
		"id":               &workflowservice.StartWorkflowExecutionRequest{WorkflowId: secret},
		"input":            &workflowservice.StartWorkflowExecutionRequest{Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{payload}}},
		"memo":             &workflowservice.StartWorkflowExecutionRequest{Memo: &commonpb.Memo{Fields: fields}},
		"search attribute": &workflowservice.StartWorkflowExecutionRequest{SearchAttributes: &commonpb.SearchAttributes{IndexedFields: fields}},
		"header":           &workflowservice.StartWorkflowExecutionRequest{Header: &commonpb.Header{Fields: fields}},
		"map key":          &workflowservice.StartWorkflowExecutionRequest{Memo: &commonpb.Memo{Fields: map[string]*commonpb.Payload{secret: nil}}},
		"metadata":         &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte(secret)}},
		"failure text":     &workflowservice.RespondActivityTaskFailedRequest{Failure: &failurepb.Failure{Message: secret}},
		"cause":            &workflowservice.RespondActivityTaskFailedRequest{Failure: &failurepb.Failure{Cause: &failurepb.Failure{Message: secret}}},
		"stack trace":      &workflowservice.RespondActivityTaskFailedRequest{Failure: &failurepb.Failure{StackTrace: "main " + secret}},
		"oneof": &workflowservice.RespondActivityTaskFailedRequest{Failure: &failurepb.Failure{
			FailureInfo: &failurepb.Failure_ApplicationFailureInfo{ApplicationFailureInfo: &failurepb.ApplicationFailureInfo{Type: secret}}}},
		"command": &workflowservice.RespondWorkflowTaskCompletedRequest{Commands: []*commandpb.Command{{
			Attributes: &commandpb.Command_StartTimerCommandAttributes{StartTimerCommandAttributes: &commandpb.StartTimerCommandAttributes{TimerId: secret}}}}},
		"query":         &workflowservice.QueryWorkflowRequest{Query: &querypb.WorkflowQuery{QueryType: secret}},
		"unknown field": unknown,
	} {
		require.Equal(t, "an enrollment token", g.findIn(m), name)
	}
	require.Empty(t, g.findIn(&workflowservice.StartWorkflowExecutionRequest{WorkflowId: "node:1", Namespace: "gpuaas"}))
}

func TestGuardedConverter(t *testing.T) {
	t.Parallel()
	c := converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), testGuard())
	for _, text := range leaks() {
		_, err := c.ToPayloads("clean", map[string]string{"field": text})
		requireLeak(t, err, text)
		_, err = c.ToPayload(text)
		requireLeak(t, err, text)
	}
	_, err := c.ToPayload(schema.NewSecret("anything"))
	require.Error(t, err, "a typed secret fails to encode")
	p, err := c.ToPayloads(lifecycle.OperationInput{OperationID: "op"}, 3)
	require.NoError(t, err)
	var in lifecycle.OperationInput
	var n int
	require.NoError(t, c.FromPayloads(p, &in, &n))
	require.Equal(t, "op", in.OperationID)
}

// requireLeak holds that the error is the guard's and does not repeat the
// secret.
func requireLeak(t *testing.T, err error, secret string) {
	t.Helper()
	require.True(t, isSecretLeak(err), "%v", err)
	require.NotContains(t, fmt.Sprintf("%+v", err), secret)
}

// frontend is a Temporal frontend that writes down what arrives.
type frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer
	mu       sync.Mutex
	requests []proto.Message
	drops    bool   // set before use: a start's update is dropped
	ends     bool   // set before use: the run closes while it handles an update
	newest   string // set before use: the operation of the newest run
}

func (f *frontend) note(m proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, m)
}

func (*frontend) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{}, nil
}

func (f *frontend) SignalWorkflowExecution(_ context.Context, r *workflowservice.SignalWorkflowExecutionRequest) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	f.note(r)
	return &workflowservice.SignalWorkflowExecutionResponse{}, nil
}

func (f *frontend) RespondActivityTaskFailedById(_ context.Context, r *workflowservice.RespondActivityTaskFailedByIdRequest) (*workflowservice.RespondActivityTaskFailedByIdResponse, error) {
	f.note(r)
	return &workflowservice.RespondActivityTaskFailedByIdResponse{}, nil
}

func (f *frontend) RespondActivityTaskCompletedById(_ context.Context, r *workflowservice.RespondActivityTaskCompletedByIdRequest) (*workflowservice.RespondActivityTaskCompletedByIdResponse, error) {
	f.note(r)
	return &workflowservice.RespondActivityTaskCompletedByIdResponse{}, nil
}

// dialFrontend returns a client made by Dial, as every process makes its own,
// and the frontend that it calls.
func dialFrontend(t *testing.T) (*Client, *frontend) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &frontend{}
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, f)
	go server.Serve(listener) //nolint:errcheck // ends with the test
	t.Cleanup(server.Stop)
	c, err := Dial(Config{Address: listener.Addr().String(), Secrets: []schema.Secret{schema.NewSecret(registered)}})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, f
}

func TestRequestsWithSecretsAreBlocked(t *testing.T) {
	t.Parallel()
	c, f := dialFrontend(t)
	require.NoError(t, c.NodeTasks.SignalAgent(t.Context(), "node:1", lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll, NodeID: "1"}))
	require.Len(t, f.requests, 1, "a clean request arrives")
	for _, text := range leaks() {
		// An id is in no payload: only the outer barrier finds it.
		requireLeak(t, c.NodeTasks.SignalAgent(t.Context(), "node:"+text, lifecycle.AgentEvent{}), text)
		requireLeak(t, c.NodeTasks.SignalAgent(t.Context(), "node:1", lifecycle.AgentEvent{NodeID: text}), text)
	}
	require.Len(t, f.requests, 1)
}

// TestOperatorTextWithSecretIsRejected: what an operator typed is the operator's
// error, not one of this program.
func TestOperatorTextWithSecretIsRejected(t *testing.T) {
	t.Parallel()
	c, f := dialFrontend(t)
	for _, text := range leaks() {
		_, submit := c.Operations.Submit(t.Context(), lifecycle.OperationInput{NodeID: "1", Host: "gpu-17", Action: lifecycle.ActionDrain, Actor: "alice", Reason: text})
		_, resolve := c.Operations.Resolve(t.Context(), "node:1", lifecycle.ResolveRequest{Decision: lifecycle.DecisionRetry, Reason: "used " + text})
		for _, err := range []error{submit, resolve} {
			require.Equal(t, schema.KindInvalidRequest, schema.KindOf(err), "%v", err)
			require.NotContains(t, fmt.Sprintf("%+v", err), text)
		}
	}
	require.Empty(t, f.requests)
}

// TestBothBarriers holds that a client made with the guard has each of the
// two, since either alone would hide that the other is missing.
func TestBothBarriers(t *testing.T) {
	t.Parallel()
	var opts client.Options
	testGuard().protect(&opts)
	_, err := opts.DataConverter.ToPayload(registered)
	requireLeak(t, err, registered)
	require.Len(t, opts.ConnectionOptions.DialOptions, 1)
}

func TestGuardRefusesUnreadable(t *testing.T) {
	t.Parallel()
	invoked := errors.New("invoked")
	err := testGuard().intercept()(t.Context(), "/m", "no message", nil, nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return invoked })
	require.Equal(t, schema.KindInternal, schema.KindOf(err))
	require.NotErrorIs(t, err, invoked)
}

// sample is an operation's state as queries return it: about 2 KiB.
func sample() lifecycle.OperationStatus {
	now := time.Unix(0, 0).UTC()
	st := lifecycle.OperationStatus{Operation: lifecycle.Operation{OperationID: schema.NewID(), WorkflowID: "node:1", Actor: "alice", StartedAt: &now}}
	for _, p := range lifecycle.PhasesOf(lifecycle.ActionProvision, lifecycle.Options{}) {
		st.Operation.Phases = append(st.Operation.Phases, lifecycle.Phase{Name: p.Name, Title: p.Title, State: lifecycle.PhaseCompleted, StartedAt: &now, EndedAt: &now})
	}
	return st
}

func BenchmarkPayload(b *testing.B) {
	plain := converter.GetDefaultDataConverter()
	for name, c := range map[string]converter.DataConverter{
		"default": plain, "guarded": converter.NewCodecDataConverter(plain, testGuard()),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			v := sample()
			p, err := c.ToPayload(v)
			require.NoError(b, err)
			b.SetBytes(int64(len(p.GetData())))
			for b.Loop() {
				if _, err := c.ToPayload(v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRequest scans a workflow task's response with ten commands.
func BenchmarkRequest(b *testing.B) {
	p, err := converter.GetDefaultDataConverter().ToPayloads(sample())
	require.NoError(b, err)
	r := &workflowservice.RespondWorkflowTaskCompletedRequest{Namespace: "gpuaas", Identity: "worker"}
	for range 10 {
		r.Commands = append(r.Commands, &commandpb.Command{Attributes: &commandpb.Command_ScheduleActivityTaskCommandAttributes{
			ScheduleActivityTaskCommandAttributes: &commandpb.ScheduleActivityTaskCommandAttributes{ActivityId: "a", Input: p}}})
	}
	b.SetBytes(int64(proto.Size(r)))
	b.ReportAllocs()
	g := testGuard()
	for b.Loop() {
		if g.findIn(r) != "" {
			b.Fatal("found something")
		}
	}
}

// TestRedaction: a redacted message has no secret, keeps its form and the rest of its text.
func TestRedaction(t *testing.T) {
	t.Parallel()
	g := testGuard()
	for _, secret := range leaks() {
		payload := func(data string) *commonpb.Payload { return &commonpb.Payload{Data: []byte(data)} }
		body, err := anypb.New(&updatepb.Rejection{RejectedRequestMessageId: "kept", RejectedRequest: &updatepb.Request{Input: &updatepb.Input{
			Args: &commonpb.Payloads{Payloads: []*commonpb.Payload{payload(`{"reason":"` + secret + `","n":7}`)}}}}})
		require.NoError(t, err)
		m := &workflowservice.RespondWorkflowTaskCompletedRequest{
			Identity: "kept", TaskToken: []byte{1, 0xff},
			Messages: []*protocolpb.Message{{Id: "kept", Body: body}},
			Commands: []*commandpb.Command{{Attributes: &commandpb.Command_RecordMarkerCommandAttributes{
				RecordMarkerCommandAttributes: &commandpb.RecordMarkerCommandAttributes{
					MarkerName: "kept", Failure: &failurepb.Failure{Message: "no " + secret},
					Details: map[string]*commonpb.Payloads{"kept": {Payloads: []*commonpb.Payload{payload(`"` + secret + `"`), payload("not JSON " + secret)}}, secret: {}},
				}}}},
		}
		m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), secret))
		require.NotEmpty(t, g.findIn(m))
		clean, ok := g.redacted(m).(*workflowservice.RespondWorkflowTaskCompletedRequest)
		require.True(t, ok)
		require.Empty(t, g.findIn(clean))
		require.NotEmpty(t, g.findIn(m), "the original is not changed")
		require.Equal(t, "kept", clean.Identity)
		require.Equal(t, []byte{1, 0xff}, clean.TaskToken)
		marker := clean.Commands[0].GetRecordMarkerCommandAttributes()
		require.Equal(t, "kept", marker.MarkerName)
		require.Len(t, marker.Details, 1)
		for _, p := range marker.Details["kept"].Payloads {
			require.True(t, json.Valid(p.Data))
			require.Contains(t, string(p.Data), "withheld")
		}
		var rejection updatepb.Rejection
		require.NoError(t, clean.Messages[0].Body.UnmarshalTo(&rejection))
		require.Equal(t, "kept", rejection.RejectedRequestMessageId)
		data := rejection.RejectedRequest.Input.Args.Payloads[0].Data
		require.True(t, json.Valid(data))
		require.Contains(t, string(data), `"n":7`)
	}
	clean := &workflowservice.RespondWorkflowTaskCompletedRequest{Identity: "w", Commands: []*commandpb.Command{{}}}
	require.True(t, proto.Equal(clean, g.redacted(clean)))
}
