// Command gpuaas-dev-temporal is the Temporal server and its Web UI in one process,
// for one machine. Its state is in one SQLite file, or with --postgres in two
// databases of a Postgres server.
//
// It is for development and tests only. In production TEMPORAL_ADDRESS points to
// the operator's cluster, and this module is not installed. Start reading at run;
// server.go has the settings that reduce latency.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.temporal.io/server/common/log"
)

// stopDeadline bounds a graceful stop. Every commit is already on disk, so stopping
// before the last long poll ends loses no data.
const stopDeadline = 3 * time.Second

// options are the flags of the command.
type options struct {
	frontend  string // host:port of the gRPC frontend
	ui        string // host:port of the Web UI; empty serves none
	metrics   string // host:port of the server's Prometheus page; empty serves none
	db        string // SQLite file
	postgres  string // URL of a Postgres server instead of db
	oneQueue  bool   // one partition for every task queue
	namespace string // created when missing
	retention time.Duration
	logLevel  string
	// authorization is a file in the format of the server's configuration; empty
	// allows everything.
	authorization string
}

func main() {
	opts := parseFlags()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintf(os.Stderr, "gpuaas-dev-temporal: %v\n", err)
		os.Exit(1)
	}
}

func parseFlags() options {
	var o options
	flag.StringVar(&o.frontend, "address", "127.0.0.1:7233", "`host:port` of the gRPC frontend")
	flag.StringVar(&o.ui, "ui-address", "127.0.0.1:8233", "`host:port` of the Web UI; empty for none")
	flag.StringVar(&o.metrics, "metrics-address", "", "`host:port` of the server's Prometheus metrics; empty for none")
	flag.StringVar(&o.db, "db", "temporal.db", "SQLite `file`; created if missing")
	flag.StringVar(&o.postgres, "postgres", os.Getenv("GPUAAS_DEV_TEMPORAL_POSTGRES"),
		"Postgres `URL` for the state instead of SQLite (also GPUAAS_DEV_TEMPORAL_POSTGRES, which process lists do not show)")
	flag.BoolVar(&o.oneQueue, "one-partition", false, "use one partition per task queue, for queues with one poller")
	flag.StringVar(&o.namespace, "namespace", "gpuaas", "namespace; created if missing")
	flag.DurationVar(&o.retention, "retention", 30*24*time.Hour, "retention of closed workflows (applies when the namespace is created)")
	flag.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	flag.StringVar(&o.authorization, "authorization", "", "`file` with global.authorization of the server's configuration, such as deploy/temporal/authorization.yaml; empty allows everything")
	flag.Parse()
	return o
}

// run serves until ctx ends, then stops within stopDeadline.
func run(ctx context.Context, o options) error {
	if err := checkPorts(o); err != nil {
		return err
	}
	logger := log.NewZapLogger(log.BuildZapLogger(log.Config{Level: o.logLevel}))
	server, err := newServer(o, logger)
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("starting the server: %w", err)
	}
	ui, err := startUI(o)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "temporal (for development only) ready: frontend %s, web ui %s, metrics %s, state %s\n",
		o.frontend, orNone(o.ui), orNone(o.metrics), o.place())
	<-ctx.Done()
	return stopWithin(stopDeadline, func() error {
		ui()
		return server.Stop()
	})
}

// checkPorts reports an occupied port. The server itself would only log it.
func checkPorts(o options) error {
	for flagName, addr := range map[string]string{"address": o.frontend, "ui-address": o.ui, "metrics-address": o.metrics} {
		if addr == "" {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("cannot listen on --%s %s: %w (stop the other program or choose another port)", flagName, addr, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// stopWithin runs stop and waits for it for at most d.
func stopWithin(d time.Duration, stop func() error) error {
	done := make(chan error, 1)
	go func() { done <- stop() }()
	select {
	case err := <-done:
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	case <-time.After(d):
		return nil
	}
}

// place describes the location of the state, without the password of a URL.
func (o options) place() string {
	if o.postgres == "" {
		return o.db
	}
	return "a Postgres server"
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
