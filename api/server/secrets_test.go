package server

import (
	"log/slog"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// The process's secrets are never sent to Temporal, wherever a caller or a bug puts
// them.
func TestSecretsNeverReachTemporal(t *testing.T) {
	const password, secretID = "database/password-0123", "0f9a0000-1111-2222-3333-secret-id"
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, workflowservice.UnimplementedWorkflowServiceServer{})
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(server.Stop)
	t.Setenv("TEMPORAL_ADDRESS", ln.Addr().String())

	a, err := newApp(&daemon.Process{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}, loaded(t, map[string]string{
		"GPUAAS_DATABASE_URL": "postgres://gpuaas:database%2Fpassword-0123@localhost/gpuaas", "GPUAAS_ENV": "test", "VAULT_ADDR": "http://127.0.0.1:1",
		"GPUAAS_VAULT_ROLE_ID_FILE": "r", "GPUAAS_VAULT_SECRET_ID_FILE": write(t, secretID+"\n"),
		"GPUAAS_ADMIN_TOKEN_FILE": write(t, adminToken+"\n"),
	}))
	require.NoError(t, err)
	t.Cleanup(a.temporal.Close)
	submit := func(reason string) *schema.Error {
		_, err := a.temporal.Operations.Submit(t.Context(), lifecycle.OperationInput{OperationID: schema.NewID(), NodeID: schema.NewID(),
			Host: "gpu-1", Action: lifecycle.ActionDrain, Actor: "test", Reason: reason})
		require.Error(t, err)
		return schema.AsError(err)
	}
	assert.Equal(t, schema.KindServiceUnavailable, submit("RMA-4411").Kind, "a reason without a secret is sent")
	for _, secret := range []string{adminToken, password, secretID} {
		e := submit("pasted: " + secret)
		assert.Equal(t, schema.KindInvalidRequest, e.Kind)
		assert.Equal(t, "secret_in_request", e.Reason)
		assert.NotContains(t, e.Error(), secret)
	}
}
