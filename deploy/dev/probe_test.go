package dev

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHTTPProbe(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "waiting for\nTemporal", status)
	}))
	defer s.Close()
	require.NoError(t, get(s.URL).once(t.Context()))
	status = http.StatusServiceUnavailable
	require.EqualError(t, get(s.URL).once(t.Context()), "it returned 503 Service Unavailable waiting for Temporal")
	s.Close()
	err := get(s.URL).once(t.Context())
	require.ErrorContains(t, err, "connection refused")
	require.NotContains(t, err.Error(), "http://", "the address is in the column beside it")
}

func TestGRPCProbe(t *testing.T) {
	t.Parallel()
	var answer string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.ProtoMajor != 2 || r.URL.Path != "/grpc.health.v1.Health/Check" ||
			!strings.HasSuffix(string(body), "temporal.api.workflowservice.v1.WorkflowService") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Trailer", "Grpc-Status")
		w.Write([]byte(answer))
		w.Header().Set("Grpc-Status", "0")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	answer = "\x00\x00\x00\x00\x02\x08\x01"
	require.NoError(t, grpcServing(address).once(t.Context()))
	answer = "\x00\x00\x00\x00\x02\x08\x02"
	require.EqualError(t, grpcServing(address).once(t.Context()), "not serving yet (gRPC status 0)")
}

func TestPostgresProbe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ answer, want string }{
		"asks for a password":    {"R\x00\x00\x00\x17\x00\x00\x00\x0aSCRAM-SHA-256\x00\x00", ""},
		"no such database":       {"E\x00\x00\x00\x20SFATAL\x00C3D000\x00\x00", ""},
		"is starting":            {"E\x00\x00\x00\x20SFATAL\x00C57P03\x00\x00", "starting up"},
		"closes without a reply": {"", "closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				startup := make([]byte, 64)
				if n, err := conn.Read(startup); err == nil && int(startup[3]) == n {
					io.WriteString(conn, c.answer) //nolint:errcheck // the probe reports it
				}
			}()
			err = acceptsSessions(l.Addr().String()).once(t.Context())
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}
