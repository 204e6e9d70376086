package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// floor is a minimal server for long polls with durable tasks: one LISTEN connection, a
// claim, mutual TLS and HTTP/1.1 from the standard library. The nodes are those of
// bareSchema, by the name in their path.
type floor struct {
	db      *pgxpool.Pool
	waiting atomic.Int64
	mu      sync.Mutex
	wakes   map[string]chan struct{}
}

// gcPath returns metrics after a garbage collection.
const gcPath = "/gc"

// varFloorDB is the database URL, which contains a password.
const varFloorDB = "BENCH_FLOOR_DATABASE_URL"

// floorRole serves until its input ends. Arguments: file with the client CA, file for its
// own certificate. It prints its ports: TLS, metrics.
func floorRole(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	db, err := pgxpool.New(ctx, os.Getenv(varFloorDB))
	if err != nil {
		return err
	}
	defer db.Close()
	f := &floor{db: db, wakes: map[string]chan struct{}{}}
	conf, err := floorTLS(args[0], args[1])
	if err != nil {
		return err
	}
	polls, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 3)
	go func() { ended <- f.listen(ctx) }()
	server := &http.Server{Handler: http.HandlerFunc(f.poll), TLSConfig: conf, Protocols: http1(), ReadHeaderTimeout: time.Minute}
	go func() { ended <- server.ServeTLS(polls, "", "") }()
	gauge := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == gcPath {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Fprintf(w, "%s %d\ngo_memstats_heap_inuse_bytes %d\ngo_memstats_stack_inuse_bytes %d\n", waitingGauge, f.waiting.Load(), m.HeapInuse, m.StackInuse)
	})}
	go func() { ended <- gauge.Serve(metrics) }()
	fmt.Fprintln(out, "listening", polls.Addr(), metrics.Addr())
	go func() {
		_, err := io.Copy(io.Discard, in)
		ended <- err
	}()
	return <-ended
}

// floorTLS creates a certificate for localhost and requires client certificates.
func floorTLS(clientCA, own string) (*tls.Config, error) {
	text, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no CA of clients")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, SessionTicketsDisabled: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}

// listen wakes polls until ctx ends.
func (f *floor) listen(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, os.Getenv(varFloorDB))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending on it
	if _, err := conn.Exec(ctx, "LISTEN bare_node"); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		f.mu.Lock()
		wake := f.wakes[n.Payload]
		f.mu.Unlock()
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// poll is …/nodes/{node}/tasks/wait.
func (f *floor) poll(w http.ResponseWriter, r *http.Request) {
	node := nodeOf(r.URL.Path)
	number, err := strconv.Atoi(node)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	// The server detects a closed connection only after the body was read.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, "the body", http.StatusBadRequest)
		return
	}
	wake := make(chan struct{}, 1)
	f.mu.Lock()
	f.wakes[node] = wake
	f.mu.Unlock()
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	end := time.NewTimer(pollFor)
	defer end.Stop()
	for {
		var id, epoch int64
		var body string
		err := f.db.QueryRow(r.Context(), bareClaim, number).Scan(&id, &epoch, &body)
		switch {
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"task_id": fmt.Sprint(id), "epoch": epoch, "body": body}) // the client may have disconnected
			return
		case !errors.Is(err, pgx.ErrNoRows):
			http.Error(w, "the database", http.StatusServiceUnavailable)
			return
		}
		select {
		case <-wake:
		case <-end.C:
			w.WriteHeader(http.StatusNoContent)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// nodeOf returns the node in …/nodes/NODE/tasks/wait.
func nodeOf(path string) string {
	_, rest, _ := strings.Cut(path, "/nodes/")
	node, _, _ := strings.Cut(rest, "/")
	return node
}
