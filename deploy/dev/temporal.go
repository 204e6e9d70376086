package dev

import (
	"context"
	"os"
	"strconv"
	"strings"
)

// temporalBinary is the embedded build.
const temporalBinary = "gpuaas-dev-temporal"

// temporalEngine describes the Temporal server and its Web UI.
type temporalEngine struct{ *stack }

// parts returns the server and, if the server is ours, its Web UI, which runs in
// the same process.
func (s temporalEngine) parts() []part {
	server := part{name: partTemporal, address: s.record.Temporal.Address}
	if !s.record.Temporal.owned() {
		server.healthy = dialable(server.address)
		return []part{server}
	}
	ui := part{name: partTemporalUI, process: partTemporal, address: s.record.WebUI, healthy: get(s.record.WebUI)}
	server.healthy = grpcServing(server.address)
	server.uses = []portUse{
		{"frontend", s.record.Ports.Temporal},
		{"Web UI", s.record.Ports.TemporalUI},
		{"metrics", s.record.Ports.TemporalMetrics},
	}
	server.prepare = func(context.Context) (command, error) {
		if s.record.Temporal.Kind == kindPath {
			return s.program(), nil
		}
		run, err := s.programs.command(temporalBinary, "--address", server.address, "--namespace", s.record.Namespace,
			"--ui-address", strings.TrimPrefix(s.record.WebUI, "http://"),
			"--metrics-address", loopback(s.record.Ports.TemporalMetrics), "--db", s.layout.temporalFile())
		if err != nil || !s.record.TemporalOnPostgres {
			return run, err
		}
		dsn, err := os.ReadFile(s.layout.databaseURL())
		run.args = append(run.args, "--one-partition")
		run.env = append(run.env, varTemporalPostgres+"="+strings.TrimSpace(string(dsn)))
		return run, err
	}
	return []part{server, ui}
}

// keepTemporalOnPostgres applies --temporal-on-postgres to a new record. Only the
// embedded build supports it.
func (s *stack) keepTemporalOnPostgres() {
	if s.temporalOnPostgres && s.record.Temporal.owned() {
		s.record.Temporal.Kind, s.record.Temporal.Program = kindEmbedded, ""
		s.record.TemporalOnPostgres = true
	}
}

// program returns the development server of an installed temporal. The settings
// raise the default of 20 queue polls per second, which would delay every step.
func (s temporalEngine) program() command {
	p := s.record.Ports
	args := []string{
		"server", "start-dev", "--ip", "127.0.0.1", "--ui-ip", "127.0.0.1",
		"--port", strconv.Itoa(p.Temporal), "--ui-port", strconv.Itoa(p.TemporalUI), "--metrics-port", strconv.Itoa(p.TemporalMetrics),
		"--db-filename", s.layout.temporalFile(), "--namespace", s.record.Namespace, "--log-level", "warn",
	}
	for _, setting := range []string{
		"history.transferProcessorMaxPollRPS=2000", "history.timerProcessorMaxPollRPS=2000",
		"history.visibilityProcessorMaxPollRPS=2000", "frontend.namespaceRPS.visibility=100000",
		"system.forceSearchAttributesCacheRefreshOnRead=true",
	} {
		args = append(args, "--dynamic-config-value", setting)
	}
	return command{path: s.record.Temporal.Program, args: args, env: inherited(os.Environ(), false)}
}
