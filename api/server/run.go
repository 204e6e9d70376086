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
		About:  "gpuaas-api serves the node API (mutual TLS) and the admin API (bearer token), and delivers results of node tasks to Temporal.",
		Config: c,
		Flags: func(f *flag.FlagSet) {
			f.Var(&c.serve, "serve", "listeners to serve, separated by commas: node, admin")
		},
		Start: func(ctx context.Context, p *daemon.Process) error { return start(ctx, p, c) },
	}
}

// start takes the listen addresses first, so that a port in use is reported
// immediately. The admin API returns 503 until every service is connected. The node
// API, whose certificate is issued by Vault, accepts connections after that.
func start(ctx context.Context, p *daemon.Process, c *config) error {
	a, err := newApp(p, c)
	if err != nil {
		return err
	}
	ln, err := listen(ctx, p, c)
	if err != nil {
		return err
	}
	warnExposed(c, p.Log)
	addresses := map[string]string{}
	for name, l := range ln {
		addresses[name] = l.Addr().String()
	}
	p.Log.Info("listening", slog.Any("addresses", addresses), slog.String("temporal", a.temporal.Address()), slog.String("env", c.Env))
	if l := ln[listenerAdmin]; l != nil {
		p.Serve(ctx, listenerAdmin, l, a.adminServer())
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	a.work(ctx)
	if l := ln[listenerNode]; l != nil {
		p.Serve(ctx, listenerNode, l, a.nodeServer(ctx))
		a.Go(ctx, "record of receiving", a.recordReceiving)
	}
	return nil
}

// listen opens the listeners that --serve selects. They close at the latest when
// the process ends.
func listen(ctx context.Context, p *daemon.Process, c *config) (map[string]net.Listener, error) {
	out := map[string]net.Listener{}
	for name, at := range map[string]struct{ variable, address string }{
		listenerAdmin: {"GPUAAS_ADMIN_ADDR", c.AdminAddr},
		listenerNode:  {"GPUAAS_NODE_ADDR", c.NodeAddr},
	} {
		if !c.serve.has(name) {
			continue
		}
		ln, err := p.Listen(ctx, at.variable, at.address)
		if err != nil {
			return nil, err
		}
		p.OnClose(func() { _ = ln.Close() }) // a server that ran has closed it already
		out[name] = ln
	}
	return out, nil
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
