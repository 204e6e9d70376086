package temporal

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/task"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/temporaltest"
)

// shipped is the authorization that operators of a self-hosted cluster use.
const shipped = "../../deploy/temporal/authorization.yaml"

// The issuer and the audience in the shipped file.
const (
	issuerKeys = "https://idp.example.com/.well-known/jwks.json"
	audience   = "temporal.example.com"
)

// issuer issues JWTs.
type issuer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return issuer{t, key}
}

func (i issuer) encode(v any) string {
	raw, err := json.Marshal(v)
	require.NoError(i.t, err)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// token returns a token with the permissions and, after them, changed claims.
func (i issuer) token(permissions []string, changed map[string]any) string {
	claims := map[string]any{"sub": "someone", "aud": audience, "exp": time.Now().Add(time.Hour).Unix(), "permissions": permissions}
	maps.Copy(claims, changed)
	body := i.encode(map[string]string{"alg": "ES256", "kid": "k", "typ": "JWT"}) + "." + i.encode(claims)
	digest := sha256.Sum256([]byte(body))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, digest[:])
	require.NoError(i.t, err)
	return body + "." + base64.RawURLEncoding.EncodeToString(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// keys is the issuer's JWKS.
func (i issuer) keys() []byte {
	public, err := i.key.PublicKey.Bytes() // 4, x, y
	require.NoError(i.t, err)
	coordinate := base64.RawURLEncoding.EncodeToString
	raw, err := json.Marshal(map[string]any{"keys": []any{map[string]string{"kty": "EC", "kid": "k", "alg": "ES256", "use": "sig", "crv": "P-256",
		"x": coordinate(public[1:33]), "y": coordinate(public[33:])}}})
	require.NoError(i.t, err)
	return raw
}

// restricted starts a server with the shipped authorization.
func restricted(t *testing.T, i issuer) (address string) {
	t.Helper()
	raw, err := os.ReadFile(shipped)
	require.NoError(t, err)
	require.Contains(t, string(raw), issuerKeys)
	require.Contains(t, string(raw), "audience: "+audience)
	jwks, settings := filepath.Join(t.TempDir(), "jwks.json"), filepath.Join(t.TempDir(), "authorization.yaml")
	require.NoError(t, os.WriteFile(jwks, i.keys(), 0o600))
	require.NoError(t, os.WriteFile(settings, []byte(strings.Replace(string(raw), issuerKeys, "file://"+jwks, 1)), 0o600))
	return temporaltest.Own(t, "--authorization", settings)
}

func requireForbidden(t *testing.T, err error, what string) {
	t.Helper()
	require.Error(t, err, what)
	require.Equal(t, reasonForbidden, schema.AsError(err).Reason, "%s: %v", what, err)
}

// TestAuthorization: with the shipped configuration, a viewer reads and cannot end, reset,
// signal, decide or complete anything; the programs and the break-glass role can; a token
// that is not valid opens nothing.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	address := restricted(t, i)
	with := func(token string) *Client {
		c, err := dial(Config{Address: address}, variables{"TEMPORAL_API_KEY": token, "TEMPORAL_TLS": "false"})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	role := func(permissions ...string) *Client { return with(i.token(permissions, nil)) }
	viewer, program, breakGlass := role("gpuaas:read"), role("gpuaas:write"), role("gpuaas:write")

	requireForbidden(t, program.Installation.Setup(t.Context()), "a setup by a program")
	require.NoError(t, role("gpuaas:admin").Installation.Setup(t.Context()))
	require.NoError(t, program.Installation.MissingAttributes(t.Context()))
	schedule := program.sdk.ScheduleClient().GetHandle(t.Context(), lifecycle.ScheduleReclaim)
	require.NoError(t, schedule.Trigger(t.Context(), client.ScheduleTriggerOptions{}))
	harness.Eventually(t, "a run that the cluster's own workers start", func() bool {
		d, err := schedule.Describe(t.Context())
		return err == nil && len(d.Info.RecentActions) > 0
	})
	operationWorker(t, program, succeeds)
	in := drainOf("gpu-17")
	op, err := program.Operations.Submit(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, in.OperationID, op.OperationID)

	require.Equal(t, in.OperationID, statusOf(t, viewer, workflowID(in), "").Operation.OperationID)
	_, _, err = viewer.Operations.Parked(t.Context())
	require.NoError(t, err)
	require.NoError(t, viewer.Healthy(t.Context()))
	d, err := viewer.sdk.DescribeWorkflowExecution(t.Context(), workflowID(in), "")
	require.NoError(t, err)

	changes := func(c *Client) map[string]func() error {
		return map[string]func() error{
			"start": func() error { _, err := c.Operations.Submit(t.Context(), drainOf("gpu-18")); return err },
			"decide": func() error {
				_, err := c.Operations.Resolve(short(t), workflowID(in), lifecycle.ResolveRequest{OperationID: in.OperationID, Decision: lifecycle.DecisionForce})
				return err
			},
			"signal": func() error {
				return c.NodeTasks.SignalAgent(t.Context(), workflowID(in), lifecycle.AgentEvent{Event: lifecycle.EventFirstPoll})
			},
			"complete": func() error {
				return c.NodeTasks.CompleteTask(t.Context(), task.Owner{WorkflowID: workflowID(in), ActivityID: "5"}, task.Reference{Status: task.Succeeded})
			},
			"cancel": func() error {
				return c.interpret(c.sdk.CancelWorkflow(t.Context(), workflowID(in), ""), "cancel")
			},
			"reset": func() error {
				_, err := c.sdk.ResetWorkflowExecution(t.Context(), &workflowservice.ResetWorkflowExecutionRequest{Namespace: c.namespace,
					WorkflowExecution: d.GetWorkflowExecutionInfo().GetExecution(), RequestId: schema.NewID(), WorkflowTaskFinishEventId: 4})
				return c.interpret(err, "reset")
			},
			"terminate": func() error {
				return c.interpret(c.sdk.TerminateWorkflow(t.Context(), workflowID(in), "", "by hand"), "terminate")
			},
			"setup": func() error { return c.Installation.Setup(t.Context()) },
		}
	}
	for name, c := range map[string]*Client{
		"a viewer":                     viewer,
		"a writer of another":          role("other:write", "gpuaas:worker"),
		"no permission":                role(),
		"an expired token":             with(i.token([]string{"gpuaas:write"}, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})),
		"a token for another audience": with(i.token([]string{"gpuaas:write"}, map[string]any{"aud": "grafana.example.com"})),
		"a token of another issuer":    with(newIssuer(t).token([]string{"gpuaas:write"}, nil)),
	} {
		for what, change := range changes(c) {
			requireForbidden(t, change(), name+": "+what)
		}
		if c != viewer {
			_, err := c.Operations.Status(t.Context(), workflowID(in), "")
			requireForbidden(t, err, name+": read")
		}
	}
	require.NoError(t, changes(breakGlass)["signal"]())
	require.NoError(t, program.sdk.GetWorkflow(t.Context(), workflowID(in), "").Get(t.Context(), nil), "nothing has touched the operation before")
	next := in
	next.OperationID = schema.NewID()
	_, err = program.Operations.Submit(t.Context(), next)
	require.NoError(t, err)
	require.NoError(t, changes(breakGlass)["terminate"]())
}

// TestAPIKeyRotation: a running process uses the key that its file has now.
func TestAPIKeyRotation(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	address, file := restricted(t, i), filepath.Join(t.TempDir(), "token")
	write := func(permission string) {
		require.NoError(t, os.WriteFile(file, []byte(i.token([]string{permission}, nil)+"\n"), 0o600))
	}
	write("gpuaas:read")
	c, err := dial(Config{Address: address}, variables{"TEMPORAL_API_KEY_FILE": file, "TEMPORAL_TLS": "false"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	requireForbidden(t, c.Installation.Setup(t.Context()), "before")
	write("gpuaas:admin")
	require.NoError(t, c.Installation.Setup(t.Context()))
	write("other:read")
	harness.Eventually(t, "the old key is out of use", func() bool {
		_, _, err := c.Operations.Parked(context.WithoutCancel(t.Context()))
		return err != nil && schema.AsError(err).Reason == reasonForbidden
	})
}
