// Package temporal is the client of Temporal: it starts operations, queries their
// status, sends decisions, completes the activities of node tasks and prepares a
// namespace. Start with Submit in submit.go.
package temporal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/secrets"
)

// DefaultNamespace is the namespace used when neither the configuration nor a
// flag names one.
const DefaultNamespace = "gpuaas"

// defaultWebUI is the Web UI of temporal server start-dev.
const defaultWebUI = "http://localhost:8233"

// callBudget bounds one call to Temporal, unless the caller's context ends
// sooner.
const callBudget = 10 * time.Second

// Config configures the connection to Temporal.
type Config struct {
	// Address and Namespace override the configuration of the temporal command
	// (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, profiles), which also has the credentials.
	// Defaults to 127.0.0.1:7233 and DefaultNamespace.
	Address   string
	Namespace string
	// Logger gets the SDK's messages. Defaults to none.
	Logger *slog.Logger
	// Metrics gets the SDK's metrics. Defaults to none.
	Metrics client.MetricsHandler
	// Tracer makes spans of operations, their activities and the calls that start them.
	// Defaults to none.
	Tracer trace.Tracer
	// Secrets are secrets of this process that must never reach Temporal, in addition
	// to text that has the form of a secret. Defaults to none.
	Secrets []schema.Secret
	// WebUI is the base URL of Temporal's Web UI. Defaults to that of a local
	// development server.
	WebUI string
	// SkipNamespace makes Setup check the namespace and its search attributes, which
	// another tool creates, instead of creating them.
	SkipNamespace bool
}

// Client is a connection to one namespace, with the parts that use it. It connects at
// first use, so that a process may start while Temporal is unavailable.
type Client struct {
	*connection
	Operations   Operations
	NodeTasks    NodeTasks
	Installation Installation
	Deployments  Deployments
	Replays      Replays
	Rotations    Rotations
	Requests     Requests
}

// Operations starts operations, reads their status and sends decisions.
type Operations struct{ *connection }

// NodeTasks delivers the heartbeats, results and events of nodes to their operations.
type NodeTasks struct{ *connection }

// Installation prepares a namespace and reports whether it is prepared.
type Installation struct {
	*connection
	skipNamespace bool
}

type connection struct {
	sdk       client.Client
	address   string
	namespace string
	webUI     string
	// converter encodes the payloads of calls that bypass the SDK.
	converter converter.DataConverter
	scanner   *secrets.Scanner
	secure    bool // uses TLS
}

// Dial reads the configuration and returns a client that connects at first use.
// It fails only on a configuration that cannot be read.
func Dial(cfg Config) (*Client, error) { return dial(cfg, envconfig.EnvLookupOS) }

func dial(cfg Config, env envconfig.EnvLookup) (*Client, error) {
	opts, key, err := clientOptions(env)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "reading Temporal's client configuration")
	}
	opts.HostPort = cmp.Or(cfg.Address, opts.HostPort, client.DefaultHostPort)
	opts.Namespace = cmp.Or(cfg.Namespace, namespaceOf(opts.Namespace))
	opts.MetricsHandler = cfg.Metrics
	opts.Logger = log.NewStructuredLogger(cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)))
	if err := traceInto(&opts, cfg.Tracer); err != nil {
		return nil, err
	}
	// Messages are a few hundred bytes: compression costs more than it saves.
	opts.ConnectionOptions.GrpcCompression = &client.GrpcCompressionNone{}
	scanner := secrets.New(append(slices.Clone(cfg.Secrets), key)...)
	guard{scanner}.protect(&opts)
	c, err := client.NewLazyClient(opts)
	if err != nil {
		return nil, schema.Wrap(schema.KindInvalidRequest, err, "configuring Temporal's client")
	}
	conn := &connection{sdk: c, address: opts.HostPort, namespace: opts.Namespace,
		webUI: cmp.Or(cfg.WebUI, defaultWebUI), scanner: scanner, converter: opts.DataConverter,
		secure: opts.ConnectionOptions.TLS != nil}
	return &Client{conn, Operations{conn}, NodeTasks{conn}, Installation{conn, cfg.SkipNamespace}, Deployments{conn}, Replays{conn}, Rotations{conn}, Requests{Operations{conn}}}, nil
}

// Withhold adds a secret to those that must never reach Temporal.
func (c *connection) Withhold(secret schema.Secret) { c.scanner.Learn(secret) }

// namespaceOf replaces the SDK's "default" with DefaultNamespace: the configuration
// does not distinguish an unset namespace from that name.
func namespaceOf(configured string) string {
	if configured == "" || configured == client.DefaultNamespace {
		return DefaultNamespace
	}
	return configured
}

// SDK returns the underlying client, for the worker.
func (c *connection) SDK() client.Client { return c.sdk }

// Address returns Temporal's address.
func (c *connection) Address() string { return c.address }

// Encrypted reports whether the connection uses TLS.
func (c *connection) Encrypted() bool { return c.secure }

// Namespace returns the namespace the client works in.
func (c *connection) Namespace() string { return c.namespace }

// Close ends the connection.
func (c *connection) Close() { c.sdk.Close() }

// Healthy reports whether Temporal responds.
func (c *connection) Healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	_, err := c.sdk.CheckHealth(ctx, &client.CheckHealthRequest{})
	return c.interpret(err, "checking Temporal's health")
}

// WebURL returns the page of a run in the Web UI.
func (c *connection) WebURL(workflowID, runID string) string {
	page := fmt.Sprintf("%s/namespaces/%s/workflows/%s", c.webUI, c.namespace, url.PathEscape(workflowID))
	if runID == "" {
		return page
	}
	return page + "/" + runID + "/timeline"
}
