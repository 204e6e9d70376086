package dev

import (
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
)

func TestPortsFrom(t *testing.T) {
	t.Parallel()
	p, err := portsFrom(17000)
	require.NoError(t, err)
	require.Equal(t, ports{
		Temporal: 17000, TemporalUI: 17001, Vault: 17002, Admin: 17003, Node: 17004,
		WorkerMetrics: 17005, APIMetrics: 17006, Postgres: 17007, TemporalMetrics: 17008,
	}, p)

	_, err = portsFrom(65535 - portSpan + 1)
	require.NoError(t, err)
	for _, n := range []int{-1, 65535 - portSpan + 2, 70000} {
		_, err := portsFrom(n)
		require.ErrorContains(t, err, "--ports-from")
	}
}

func TestStandardPorts(t *testing.T) {
	t.Parallel()
	p := standardPorts(t.Context())
	require.Equal(t, []int{7233, 8233, 8200, 8081, 8443, 9090, 9091},
		[]int{p.Temporal, p.TemporalUI, p.Vault, p.Admin, p.Node, p.WorkerMetrics, p.APIMetrics})
	require.GreaterOrEqual(t, p.Postgres, 5433)
	require.GreaterOrEqual(t, p.TemporalMetrics, 9095)
}

func TestOccupiedPort(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{"loopback": "127.0.0.1:0", "every address": "0.0.0.0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := hold(t, address)
			up := upOptions{options: &options{dir: "/srv/a stack"}, detach: true, temporalOnPostgres: true}.command()
			err := checkPort(t.Context(), partVault, "API", port, up)
			require.ErrorContains(t, err, "in use")
			require.ErrorContains(t, err, partVault)
			require.ErrorContains(t, err, loopback(port)[len("127.0.0.1:"):])
			e := schema.AsError(err)
			_, from, found := strings.Cut(e.Next, "gpuaas dev up --detach --temporal-on-postgres --dir '/srv/a stack' --ports-from ")
			require.True(t, found, e.Next)
			n, err := strconv.Atoi(from)
			require.NoError(t, err, "a number that can be typed")
			_, err = portsFrom(n)
			require.NoError(t, err)
			require.Equal(t, schema.ExitFailed, e.Kind.Info().Exit)
		})
	}
}

func TestPreflightReportsEveryPort(t *testing.T) {
	t.Parallel()
	s := &stack{}
	one, two := hold(t, "127.0.0.1:0"), hold(t, "127.0.0.1:0")
	err := s.preflight(t.Context(), []part{
		{name: "first", uses: []portUse{{"API", one}}}, {name: "second", uses: []portUse{{"metrics", two}}},
	})
	require.ErrorContains(t, err, "which first needs for its API")
	require.ErrorContains(t, err, "which second needs for its metrics")
}

// hold listens on an address until the test ends and answers the port.
func hold(t *testing.T, address string) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// freeBase answers the first of portSpan free ports in a row, below those that
// the kernel gives to outgoing connections.
func freeBase(t *testing.T) int {
	t.Helper()
search:
	for range 100 {
		base := 12000 + rand.IntN(20000)
		for port := base; port < base+portSpan; port++ {
			if !portFree(t.Context(), port) {
				continue search
			}
		}
		return base
	}
	t.Fatal("no nine free ports in a row")
	return 0
}
