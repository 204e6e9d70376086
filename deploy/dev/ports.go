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

// ports are the stack's ports on the loopback interface, in the order of
// --ports-from.
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

// portSpan is the number of ports that --ports-from reserves.
const portSpan = 9

// portsFrom returns the ports n, n+1, … in order.
func portsFrom(n int) (ports, error) {
	if n < 1 || n+portSpan-1 > 65535 {
		return ports{}, fmt.Errorf("--ports-from %d: ports %d to %d are out of range; use 1024 to %d",
			n, n, n+portSpan-1, 65535-portSpan+1)
	}
	return ports{n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8}, nil
}

// standardPorts returns the documented ports. For Postgres and for Temporal's
// metrics, whose ports are never typed, it picks the first free port near the
// usual one, in case the machine runs its own database.
func standardPorts(ctx context.Context) ports {
	p := ports{Temporal: 7233, TemporalUI: 8233, Vault: 8200, Admin: 8081, Node: 8443, WorkerMetrics: 9090, APIMetrics: 9091}
	p.Postgres = firstFree(ctx, 5433)
	p.TemporalMetrics = firstFree(ctx, 9095)
	return p
}

// firstFree returns the first free port from n. If 100 ports are occupied it
// returns n, which preflight then reports.
func firstFree(ctx context.Context, n int) int {
	for port := n; port < n+100; port++ {
		if portFree(ctx, port) {
			return port
		}
	}
	return n
}

// portFree reports whether a server can use the port. Binding is not sufficient:
// some systems let two servers share a port on different addresses.
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

// firstFreeSpan returns the first of portSpan free ports in a row from n; false if there are none below
// the ports that systems use for outgoing connections.
func firstFreeSpan(ctx context.Context, n int) (int, bool) {
	for first := n; first < 32000; first += 10 {
		port := first
		for port < first+portSpan && portFree(ctx, port) {
			port++
		}
		if port == first+portSpan {
			return first, true
		}
	}
	return 0, false
}

// checkPort returns an error if a part's port is occupied. up is the command that starts the stack.
func checkPort(ctx context.Context, part, purpose string, port int, up string) error {
	if portFree(ctx, port) {
		return nil
	}
	next := "stop the other program"
	if n, found := firstFreeSpan(ctx, 17000); found {
		next += fmt.Sprintf(", or choose other ports: %s --ports-from %d", up, n)
	}
	return stackError(next, "port %d, which %s needs for its %s, is in use by another program", port, part, purpose).WithReason("port_taken")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
