package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpuaas/gpuaas/internal/postgres"
	"github.com/gpuaas/gpuaas/internal/store"
	"github.com/gpuaas/gpuaas/test/harness"
	"github.com/gpuaas/gpuaas/test/testkit/pgtest"
)

// Readiness turns false whenever the database or the connection for its notifications
// fails, and names it. Without Vault or Temporal the process is degraded, and it is whole
// again when the server is back. Every listener answers alike. While the node API serves, the
// process records that it receives requests.
func TestReadinessFollowsServers(t *testing.T) {
	before := goleak.IgnoreCurrent()
	target, err := url.Parse(pgtest.New(t, store.Migrate))
	require.NoError(t, err)
	db := newProxy(t, harness.FreeAddress(t), target.Host)
	target.Host = db.address
	p := newProcess(t, target.String())
	temporal := newProxy(t, p.temporal, sharedTemporal.Address(t))
	db.open()
	temporal.open()
	stop := p.start()
	ready := p.admin + "/readyz"
	p.answers(ready, http.StatusOK, "ok")

	conn, err := pgx.Connect(t.Context(), target.String())
	require.NoError(t, err)
	var receiving bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT seen_at > now() - interval '30 seconds' FROM node_api").Scan(&receiving))
	assert.True(t, receiving)
	require.NoError(t, conn.Close(t.Context()))

	db.close()
	p.answers(ready, http.StatusServiceUnavailable, "not ready: postgres, notifications unavailable")
	p.answers(ready+"?exclude=postgres&exclude=notifications", http.StatusOK, "ok")
	db.open()
	p.answers(ready, http.StatusOK, "ok")

	degraded := func(names string) {
		t.Helper()
		p.answers(ready, http.StatusOK, `{"status":"ok","degraded":[`+names+`]}`)
	}
	const whole = `"lease-key"` // without a verifier set there is no usable lease key
	degraded(whole)
	p.vault.Stop(t)
	degraded(`"vault","lease-key"`)
	p.vault.Start(t)
	degraded(whole)
	p.vault.Seal(t)
	degraded(`"vault","lease-key"`)
	p.vault.Unseal(t)
	degraded(whole)

	temporal.close()
	degraded(`"lease-key","temporal"`)
	p.answers(p.metrics+"/readyz", http.StatusOK, `"temporal"]`)
	p.answers(p.admin+"/api/v1/healthz", http.StatusOK, "ok")
	a, err := send(t.Context(), p.client(), http.MethodGet, p.node+"/readyz", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, a.status)
	p.answers(p.admin+"/livez", http.StatusOK, "ok")
	temporal.open()
	degraded(whole)

	assert.Equal(t, 0, stop())
	db.close()
	temporal.close()
	http.DefaultClient.CloseIdleConnections()
	harness.NoLeak(t, before, goleak.IgnoreAnyFunction("github.com/gpuaas/gpuaas/test/testkit/devserver.Start.func1"), // the restarted Vault
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), // the test's own clients
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// A process is ready as soon as it has started, not only after the second probe.
func TestReadyAfterFirstProbe(t *testing.T) {
	p := newProcess(t, pgtest.New(t, store.Migrate))
	p.vars["GPUAAS_HEALTH_INTERVAL"] = "1h"
	p.start()
	p.becomes(http.StatusOK, "ok")
}

// A process that serves only the admin API does not open the node listener.
func TestServeAdminOnly(t *testing.T) {
	p := newProcess(t, pgtest.New(t, store.Migrate))
	p.args = []string{"--serve", "admin"}
	stop := p.start()
	p.becomes(http.StatusOK, "ok")
	u, err := url.Parse(p.node)
	require.NoError(t, err)
	_, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", u.Port()))
	require.Error(t, err)
	assert.Equal(t, 0, stop())
}

// A process waits for a schema that it works with, and is not ready while the database has
// another one. The log and the list of what is stuck say what to do.
func TestReadinessFollowsTheSchema(t *testing.T) {
	databaseURL := pgtest.New(t, store.Migrate)
	works := func(from int) {
		require.NoError(t, postgres.Run(t.Context(), databaseURL, fmt.Sprintf("UPDATE schema_programs SET oldest_program = %d", from)))
	}
	works(9999)
	p := newProcess(t, databaseURL)
	p.start()
	p.answers(p.metrics+"/readyz", http.StatusServiceUnavailable, "waiting for the database schema")
	works(1)
	p.becomes(http.StatusOK, "ok")

	works(9999)
	p.becomes(http.StatusServiceUnavailable, "not ready: schema unavailable")
	require.Contains(t, p.log.String(), "works with programs from schema version 9999 on")
	stuck := p.ask(http.MethodGet, "/stuck", nil)
	require.Contains(t, string(stuck.body), "start the version of this program whose gpuaas admin setup migrated the database")
	works(1)
	p.becomes(http.StatusOK, "ok")

	require.NoError(t, postgres.Run(t.Context(), databaseURL, "DROP TABLE schema_programs"))
	p.becomes(http.StatusServiceUnavailable, "not ready: schema unavailable")
	require.Contains(t, p.log.String(), "gpuaas admin setup")
}

// proxy passes connections to its address on to a server while it is open.
type proxy struct {
	t               *testing.T
	address, target string
	mu              sync.Mutex
	ln              net.Listener
	conns           []net.Conn
	group           sync.WaitGroup
	hanging         atomic.Bool
}

func newProxy(t *testing.T, address, target string) *proxy {
	t.Helper()
	d := &proxy{t: t, address: address, target: target}
	t.Cleanup(d.close)
	return d
}

func (d *proxy) open() {
	d.t.Helper()
	ln, err := net.Listen("tcp", d.address)
	require.NoError(d.t, err)
	d.mu.Lock()
	d.ln = ln
	d.mu.Unlock()
	d.group.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", d.target)
			if err != nil {
				in.Close()
				continue
			}
			if !d.admit(ln, in, out) {
				return
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				d.group.Go(func() {
					_, _ = io.Copy(silencer{way[0], &d.hanging}, way[1])
					way[0].Close()
				})
			}
		}
	})
}

// hang drops what the connections carry, and neither end learns of it.
func (d *proxy) hang() { d.hanging.Store(true) }

// silencer writes nothing while it is on.
type silencer struct {
	io.Writer

	on *atomic.Bool
}

func (s silencer) Write(b []byte) (int, error) {
	if s.on.Load() {
		return len(b), nil
	}
	return s.Writer.Write(b)
}

// admit keeps the connections for close, or closes them when ln is closed already.
func (d *proxy) admit(ln net.Listener, conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ln == ln {
		d.conns = append(d.conns, conns...)
		return true
	}
	for _, c := range conns {
		c.Close()
	}
	return false
}

// close cuts all connections and accepts no more.
func (d *proxy) close() {
	d.mu.Lock()
	if d.ln != nil {
		d.ln.Close()
		d.ln = nil
	}
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	d.group.Wait()
}
