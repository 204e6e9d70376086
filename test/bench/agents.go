package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// pollFor is the duration of a poll, pollSlack the additional time until it fails.
	// Like the real agent's it allows for simultaneous handshakes.
	pollFor, pollSlack = 55 * time.Second, 75 * time.Second
	// handshakeFor is the real agent's handshake timeout.
	handshakeFor = 30 * time.Second
	// sources is the number of loopback source addresses, for enough ports.
	sources = 8
)

// agents are minimal agents with a certificate, a TLS connection and a long poll over
// HTTP/1.1 each, like the real agent's. With 10,000 real agents, their process would
// dominate the measurement.
type agents struct {
	nodes []node
	url   string
	roots *x509.CertPool
	out   *bufio.Writer
	write sync.Mutex

	shaken, failed atomic.Int64
}

// agentsRole executes commands from its input. Arguments: file with the nodes, URL, file
// with the server's CA. "connect N" closes all connections and opens N at once. It
// prints "connected SECONDS" after all handshakes, "offer TASK NANOSECONDS" for each
// task, and for "failed" the number of failed polls.
func agentsRole(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	a := &agents{url: args[1], roots: x509.NewCertPool(), out: bufio.NewWriter(out)}
	for path, use := range map[string]func([]byte) error{
		args[0]: func(raw []byte) error { return json.Unmarshal(raw, &a.nodes) },
		args[2]: func(raw []byte) error {
			if !a.roots.AppendCertsFromPEM(raw) {
				return errors.New("no CA of the server")
			}
			return nil
		},
	} {
		raw, err := os.ReadFile(path)
		if err == nil {
			err = use(raw)
		}
		if err != nil {
			return err
		}
	}
	clients, err := a.clients()
	if err != nil {
		return err
	}
	tear := func() {}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var n int
		if lines.Text() == "failed" {
			a.say("failed %d", a.failed.Load())
			continue
		}
		if _, err := fmt.Sscanf(lines.Text(), "connect %d", &n); err != nil {
			return err
		}
		tear()
		tear = a.connect(ctx, clients[:n])
	}
	return nil
}

func (a *agents) say(format string, args ...any) {
	a.write.Lock()
	defer a.write.Unlock()
	fmt.Fprintf(a.out, format+"\n", args...)
	_ = a.out.Flush() // fails only if the reader has exited
}

// lightAgent is one minimal agent. It keeps its connection in order to close it: an HTTP
// client closes idle connections only.
type lightAgent struct {
	node node
	cert tls.Certificate
	from net.Dialer
	http *http.Client
	mu   sync.Mutex
	line net.Conn
}

func (a *agents) clients() ([]*lightAgent, error) {
	out := make([]*lightAgent, len(a.nodes))
	for i, n := range a.nodes {
		cert, err := tls.X509KeyPair([]byte(n.Cert), []byte(n.Key))
		if err != nil {
			return nil, err
		}
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%sources))}}
		out[i] = &lightAgent{node: n, cert: cert, from: from}
	}
	return out, nil
}

// fresh replaces the client by one without a connection.
func (c *lightAgent) fresh(roots *x509.CertPool) {
	c.http = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{c.cert}, MinVersion: tls.VersionTLS13},
		Protocols:       http1(), MaxIdleConns: 1, TLSHandshakeTimeout: handshakeFor, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := c.from.DialContext(ctx, network, address)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.line = conn
			return conn, err
		},
	}}
}

// http1 selects the real agent's protocol.
func http1() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	return &p
}

func (c *lightAgent) tear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line != nil {
		c.line.Close()
	}
	c.http.CloseIdleConnections()
}

// connect starts all polls at once and reports when all have connected.
func (a *agents) connect(ctx context.Context, clients []*lightAgent) (tear func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, c := range clients {
		c.fresh(a.roots)
	}
	a.shaken.Store(0)
	all, started := int64(len(clients)), time.Now()
	trace := &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
		if err == nil && a.shaken.Add(1) == all {
			a.say("connected %f", time.Since(started).Seconds())
		}
	}}
	if all == 0 {
		a.say("connected 0")
	}
	for _, c := range clients {
		group.Go(func() { a.live(httptrace.WithClientTrace(ctx, trace), c) })
	}
	return func() {
		cancel()
		group.Wait()
		for _, c := range clients {
			c.tear()
		}
	}
}

// live polls until ctx ends.
func (a *agents) live(ctx context.Context, c *lightAgent) {
	for ctx.Err() == nil {
		err := a.poll(ctx, c)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if a.failed.Add(1) <= 3 {
			fmt.Fprintln(os.Stderr, "a poll failed:", err)
		}
		if pause(ctx, time.Second) != nil {
			return
		}
	}
}

func (a *agents) poll(ctx context.Context, c *lightAgent) error {
	ctx, cancel := context.WithTimeout(ctx, pollSlack)
	defer cancel()
	nonce := make([]byte, 16)
	rand.Read(nonce)
	poll, err := json.Marshal(wire.PollRequest{AgentSession: "bench-1", Nonce: base64.RawURLEncoding.EncodeToString(nonce),
		WaitSeconds: pollFor.Seconds()})
	if err != nil {
		return err
	}
	url := a.url + "/internal/v1/nodes/" + c.node.ID + "/tasks/wait"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(poll))
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	at := time.Now()
	if err != nil {
		return err
	}
	switch res.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusOK:
		var o struct {
			TaskID string `json:"task_id"`
		}
		if err := json.Unmarshal(body, &o); err != nil {
			return err
		}
		a.say("offer %s %d", o.TaskID, at.UnixNano())
		return nil
	}
	return fmt.Errorf("%s: %s", res.Status, body)
}
