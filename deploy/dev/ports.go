package dev

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"
)

// The parts, in the order in which they start.
const (
	partPostgres   = "postgres"
	partVault      = "vault"
	partTemporal   = "temporal"
	partTemporalUI = "temporal-ui"
	partWorker     = "worker"
	partAPI        = "api"
)

// ports are the stack's ports on the loopback interface. Their order here is
// the one of --ports-from.
type ports struct {
	Temporal        int `json:"temporal"`
	TemporalUI      int `json:"temporal_ui"`
	Vault           int `json:"vault"`
	Admin           int `json:"admin_api"`
	Node            int `json:"node_api"`
	WorkerMetrics   int `json:"worker_metrics"`
	APIMetrics      int `json:"api_metrics"`
	Postgres        int `json:"postgres"`
	TemporalMetrics int `json:"temporal_metrics"`
}

// portSpan is how many ports --ports-from takes.
const portSpan = 9

// portsFrom answers the ports n, n+1, … in order.
func portsFrom(n int) (ports, error) {
	if n < 1 || n+portSpan-1 > 65535 {
		return ports{}, fmt.Errorf("--ports-from %d: the ports %d to %d do not all exist; give 1024 to %d",
			n, n, n+portSpan-1, 65535-portSpan+1)
	}
	return ports{n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8}, nil
}

// standardPorts are the documented ones. The two that nobody types, Postgres's
// and those of Temporal's metrics, are the first free ones from where they are
// usually looked for, so that a database of the machine's own is not in the way.
func standardPorts(ctx context.Context) ports {
	p := ports{Temporal: 7233, TemporalUI: 8233, Vault: 8200, Admin: 8081, Node: 8443, WorkerMetrics: 9090, APIMetrics: 9091}
	p.Postgres = firstFree(ctx, 5433)
	p.TemporalMetrics = firstFree(ctx, 9095)
	return p
}

// firstFree answers the first port from n on that nobody holds; n when all near
// it are held, which the check before the start then reports.
func firstFree(ctx context.Context, n int) int {
	for port := n; port < n+100; port++ {
		if portFree(ctx, port) {
			return port
		}
	}
	return n
}

// portFree reports whether a server of ours could have the port. Binding alone
// does not tell everywhere: some systems let two servers share a port on
// different addresses.
func portFree(ctx context.Context, port int) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback(port))
	if err != nil {
		return false
	}
	l.Close()
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", loopback(port))
	if err == nil {
		conn.Close()
	}
	return err != nil
}

// checkPort answers the error for a port that a part cannot have.
func checkPort(ctx context.Context, part, use string, port int) error {
	if portFree(ctx, port) {
		return nil
	}
	return fault("stop what holds it, or choose other ports: gpuaas dev up --ports-from N",
		"port %d is taken by another program, and %s needs it for its %s", port, part, use).WithReason("port_taken")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
