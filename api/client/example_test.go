package client_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/api/client"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/apitest"
)

func pemOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// drain drains a node and returns what an operator should read. A parked drain waits for a decision.
func drain(ctx context.Context, c *client.Client, node string) (string, error) {
	started, err := c.Start(ctx, node, lifecycle.ActionDrain, wire.LifecycleRequest{Reason: "CHG-204"})
	if err != nil {
		return "", err
	}
	op, err := c.WaitOperation(ctx, started.Operation.OperationID)
	if err != nil {
		return "", err
	}
	if op.Operation.Status == lifecycle.OperationParked {
		return "the drain needs a decision: " + op.Operation.Stuck.Next, nil
	}
	return "the drain ended: " + op.Operation.Outcome, nil
}

// Drain a node before maintenance.
func Example_drain() {
	c, err := client.New("https://gpuaas.example.com", client.WithTokenFile("/run/secrets/gpuaas-token"))
	if err != nil {
		slog.Error("creating the client", slog.Any("err", err))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	result, err := drain(ctx, c, "gpu-17")
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		slog.Error("draining gpu-17", slog.Any("err", err), slog.String("code", string(refused.Code)), slog.String("next", refused.Next))
	case err != nil:
		slog.Error("draining gpu-17", slog.Any("err", err))
	default:
		slog.Info(result)
	}
}

// The hosts of a rack. The loop reads the pages as it needs them.
func ExampleClient_Nodes() {
	c, err := client.New("https://gpuaas.example.com", client.WithTokenFile("/run/secrets/gpuaas-token"))
	if err != nil {
		slog.Error("creating the client", slog.Any("err", err))
		return
	}
	for n, err := range c.Nodes(context.Background(), client.NodeFilter{Selector: new("rack=r7")}) {
		if err != nil {
			slog.Error("listing nodes", slog.Any("err", err))
			return
		}
		slog.Info("node", slog.String("host", n.Host), slog.String("state", string(n.State)))
	}
}

// The function of the example, against a real API.
func TestExampleDrain(t *testing.T) {
	t.Parallel()
	server := apitest.New(t, nil)
	c := dial(t, server.URL)
	node, err := c.RegisterNode(t.Context(), registration("gpu-17"))
	require.NoError(t, err)
	_, err = drain(t.Context(), c, "gpu-17")
	require.ErrorIs(t, err, &schema.Error{Kind: schema.KindInvalidRequest}, "it has not enrolled")
	server.SetState(node.ID, lifecycle.NodeActive)
	ended := make(chan string, 1)
	go func() {
		result, err := drain(t.Context(), c, "gpu-17")
		ended <- result + fmt.Sprint(err)
	}()
	harness.Eventually(t, "a drain", func() bool {
		n, err := c.Node(t.Context(), "gpu-17")
		require.NoError(t, err)
		if len(ended) > 0 {
			require.Fail(t, <-ended)
		}
		return n.Operation != nil
	})
	server.Finish(node.ID, lifecycle.OperationCompleted, lifecycle.NodeDrained)
	require.Equal(t, "the drain ended: ended by the test<nil>", harness.Receive(t, "the end", ended))
}
