package server

import (
	"context"
	"flag"
	"io"
	"log/slog"
	"net"

	"github.com/gpuaas/gpuaas/internal/daemon"
)

// Main is the whole program and returns its exit code. args are the arguments
// after the program's name. The server stops when ctx ends.
func Main(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return daemon.Main(ctx, program(defaults()), args, getenv, stdout, stderr)
}

func program(c *config) daemon.Program {
	return daemon.Program{
		Name:   "gpuaas-api",
		About:  "gpuaas-api serves the node API (mutual TLS), the admin API (bearer token) and the operator console, and delivers results of node tasks to Temporal.",
		Config: c,
		Flags: func(f *flag.FlagSet) {
			f.Var(&c.serve, "serve", "what to serve, separated by commas: node, admin, and with admin also console")
		},
		Start: func(ctx context.Context, p *daemon.Process) error { return start(ctx, p, c) },
	}
}

// start takes the listen addresses first, so that a port in use is reported
// immediately. The admin API returns 503 until every service is connected. The port of the
// node API is closed again until then: a load balancer that only connects must not find a
// replica that does not serve.
func start(ctx context.Context, p *daemon.Process, c *config) error {
	a, err := newApp(p, c)
	if err != nil {
		return err
	}
	if c.serve.has(listenerNode) {
		ln, err := a.listenNode(ctx)
		if err != nil {
			return err
		}
		_ = ln.Close()
	}
	warnExposed(c, p.Log)
	p.Log.Info("starting", slog.String("temporal", a.temporal.Address()), slog.String("env", c.Env))
	if c.serve.has(listenerAdmin) {
		ln, err := p.Listen(ctx, "GPUAAS_ADMIN_ADDR", c.AdminAddr)
		if err != nil {
			return err
		}
		logListening(a.Log, listenerAdmin, ln)
		a.adminAddress = ln.Addr().String()
		p.Serve(ctx, listenerAdmin, ln, a.adminServer())
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	if err := a.registerGauges(); err != nil {
		return err
	}
	a.work(ctx)
	if !c.serve.has(listenerNode) {
		return nil
	}
	ln, err := a.listenNode(ctx)
	if err != nil {
		return err
	}
	logListening(a.Log, listenerNode, ln)
	a.serveNodes(ctx, ln)
	return nil
}

func (a *app) listenNode(ctx context.Context) (net.Listener, error) {
	return a.Listen(ctx, "GPUAAS_NODE_ADDR", a.cfg.NodeAddr)
}

func logListening(log *slog.Logger, name string, ln net.Listener) {
	log.Info("listening", slog.String("listener", name), slog.String("address", ln.Addr().String()))
}

// warnExposed logs a warning when the bearer token would cross a network
// unencrypted.
func warnExposed(c *config, log *slog.Logger) {
	host, _, _ := net.SplitHostPort(c.AdminAddr)
	if ip := net.ParseIP(host); c.serve.has(listenerAdmin) && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		log.Warn("the admin API serves plain HTTP on a network address; put a TLS proxy in front of it",
			slog.String("address", c.AdminAddr))
	}
}
