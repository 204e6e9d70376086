package main

import (
	"fmt"
	"net"
	"strconv"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

const (
	clusterName = "active"
	storeName   = "main"
	// visibilityName is the second store, which SQLite does not need.
	visibilityName = "visibility"
	// On Postgres the number of shards is that of auto-setup; SQLite has one writer.
	postgresShards, sqliteShards = 4, 1
)

// newServer combines the four services in one process. They communicate over random
// loopback ports.
func newServer(o options, logger log.Logger) (temporal.Server, error) {
	stores, err := openStores(o)
	if err != nil {
		return nil, err
	}
	frontend, err := parseListen(o.frontend)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	listens := map[primitives.ServiceName]listen{
		primitives.FrontendService: frontend,
		primitives.HistoryService:  {ip: "127.0.0.1", port: ports[0]},
		primitives.MatchingService: {ip: "127.0.0.1", port: ports[1]},
		primitives.WorkerService:   {ip: "127.0.0.1", port: ports[2]},
	}
	access, err := readAccess(o.authorization, logger)
	if err != nil {
		return nil, err
	}
	if access.restricted {
		listens[primitives.InternalFrontendService] = listen{ip: "127.0.0.1", port: ports[3]}
	}
	return temporal.NewServer(
		temporal.WithConfig(serverConfig(o, stores, listens)),
		temporal.ForServices(serviceNames(listens)),
		temporal.WithStaticHosts(staticHosts(listens)),
		temporal.WithLogger(logger),
		temporal.WithAuthorizer(access.authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return access.claims }),
		temporal.WithAudienceGetter(func(*config.Config) authorization.JWTAudienceMapper { return access.audience }),
		temporal.WithDynamicConfigClient(limits(o.oneQueue)),
	)
}

func serverConfig(o options, stores config.Persistence, listens map[primitives.ServiceName]listen) *config.Config {
	c := &config.Config{
		Services:    make(map[string]config.Service, len(listens)),
		Persistence: stores,
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{clusterName: {
				Enabled:                true,
				InitialFailoverVersion: 1,
				RPCAddress:             listens[primitives.FrontendService].dial(),
			}},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		PublicClient:        config.PublicClient{HostPort: listens[primitives.FrontendService].dial()},
	}
	if _, internal := listens[primitives.InternalFrontendService]; internal {
		c.PublicClient.HostPort = "" // the server's own workers have no token
	}
	c.Global.Membership.MaxJoinDuration = 30 * time.Second
	c.Global.Membership.BroadcastAddress = "127.0.0.1"
	if o.metrics != "" {
		c.Global.Metrics = &metrics.Config{Prometheus: &metrics.PrometheusConfig{
			Framework: metrics.FrameworkOpentelemetry, ListenAddress: o.metrics, HandlerPath: "/metrics",
		}}
	}
	c.Archival.History.State = config.ArchivalDisabled
	c.Archival.Visibility.State = config.ArchivalDisabled
	c.NamespaceDefaults.Archival.History.State = config.ArchivalDisabled
	c.NamespaceDefaults.Archival.Visibility.State = config.ArchivalDisabled
	for name, l := range listens {
		c.Services[string(name)] = config.Service{RPC: config.RPC{GRPCPort: l.port, BindOnIP: l.ip}}
	}
	return c
}

// limits raises defaults that are meant for a shared cluster. By default a shard
// polls its queues at most 20 times a second, which delays each step of a workflow
// by up to 50 ms. The others are limits that a test suite on one machine exceeds.
func limits(oneQueue bool) dynamicconfig.Client {
	const many, perQueue = 100_000, 2_000
	c := dynamicconfig.StaticClient{
		dynamicconfig.TransferProcessorMaxPollRPS.Key():                                        perQueue,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():                                           perQueue,
		dynamicconfig.VisibilityProcessorMaxPollRPS.Key():                                      perQueue,
		dynamicconfig.OutboundProcessorMaxPollRPS.Key():                                        perQueue,
		dynamicconfig.FrontendRPS.Key():                                                        many,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():                                 many,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key():                       many,
		dynamicconfig.FrontendMaxNamespaceNamespaceReplicationInducingAPIsRPSPerInstance.Key(): many,
		dynamicconfig.FrontendNamespaceReplicationInducingAPIsRPS.Key():                        many,
		dynamicconfig.FrontendMaxConcurrentLongRunningRequestsPerInstance.Key():                many,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                                          many,
		dynamicconfig.MatchingRPS.Key():                                                        many,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                                          many,
		dynamicconfig.HistoryRPS.Key():                                                         many,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                                           many,
		dynamicconfig.VisibilityPersistenceMaxReadQPS.Key():                                    many,
		dynamicconfig.VisibilityPersistenceMaxWriteQPS.Key():                                   many,
		// Search attributes are usable immediately after `gpuaas admin setup`.
		dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): true,
		// Disables telemetry.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
	}
	if oneQueue {
		c[dynamicconfig.MatchingNumTaskqueueReadPartitions.Key()] = 1
		c[dynamicconfig.MatchingNumTaskqueueWritePartitions.Key()] = 1
	}
	return c
}

// startUI serves the Web UI and returns a function that stops it.
func startUI(o options) (stop func(), err error) {
	if o.ui == "" {
		return func() {}, nil
	}
	ui, err := parseListen(o.ui)
	if err != nil {
		return nil, err
	}
	frontend, err := parseListen(o.frontend)
	if err != nil {
		return nil, err
	}
	server := uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		Host:                ui.ip,
		Port:                ui.port,
		TemporalGRPCAddress: frontend.dial(),
		DefaultNamespace:    o.namespace,
		EnableUI:            true,
		DisableNewsFetch:    true,
		HideLogs:            true,
		CORS:                uiconfig.CORS{CookieInsecure: true},
	}))
	// Start returns when Stop is called; a listen error ends the process.
	go func() { _ = server.Start() }()
	return server.Stop, nil
}

func serviceNames(listens map[primitives.ServiceName]listen) (names []string) {
	for name := range listens {
		names = append(names, string(name))
	}
	return names
}

// listen is one bound address.
type listen struct {
	ip   string
	port int
}

// dial is the address for connections within the process.
func (l listen) dial() string {
	ip := l.ip
	if parsed := net.ParseIP(ip); parsed != nil && parsed.IsUnspecified() {
		ip = "127.0.0.1"
	}
	return net.JoinHostPort(ip, strconv.Itoa(l.port))
}

// parseListen parses host:port. The server binds IP addresses only, so parseListen
// resolves a name.
func parseListen(addr string) (listen, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return listen{}, fmt.Errorf("address %q: %w (use host:port)", addr, err)
	}
	ip := "127.0.0.1"
	if tcp.IP != nil {
		ip = tcp.IP.String()
	}
	return listen{ip: ip, port: tcp.Port}, nil
}

// freePorts returns n distinct free loopback ports.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func staticHosts(listens map[primitives.ServiceName]listen) map[primitives.ServiceName]static.Hosts {
	hosts := make(map[primitives.ServiceName]static.Hosts, len(listens))
	for name, l := range listens {
		hosts[name] = static.Hosts{Self: l.dial(), All: []string{l.dial()}}
	}
	return hosts
}
