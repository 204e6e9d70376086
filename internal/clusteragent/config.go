package clusteragent

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/internal/daemon"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/text"
)

// The defaults of the settings that fall back to them.
const (
	defaultKubeconfig    = "/etc/rancher/k3s/k3s.yaml"
	defaultMetricsPort   = 9625
	defaultMetricsAddr   = ":9625"
	minMetricsPort       = 1024
	defaultRebootWait    = health.StandardRebootWait
	defaultGPURebootWait = health.GPURebootWait
	maxWaitMinutes       = 24 * 60
	defaultNamespace     = "kube-system"
	namespaceFile        = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// config is the configuration of the program. The CIVO_ variables are texts: a value that cannot be
// parsed counts as the default, as in Civo's node agent. All others are checked.
type config struct {
	daemon.Common

	Monitor       string        `env:"CIVO_NODE_AGENT_MONITOR_ONLY" envDefault:"true" help:"false restarts nodes and deletes Node objects. All other values only log and count what would be done."`
	Port          string        `env:"CIVO_NODE_AGENT_METRICS_PORT" envDefault:"9625" help:"Port of /metrics, 1024 to 65535, on all addresses, unless GPUAAS_METRICS_ADDR is set. Another value counts as the default."`
	Pool          string        `env:"CIVO_NODE_POOL_ID" help:"IDs of node pools separated by commas. Default: all nodes."`
	Pools         string        `env:"CIVO_NODE_POOL_IDS" help:"More IDs, in the same form."`
	RebootWait    string        `env:"CIVO_NODE_REBOOT_WAIT_MINUTES" envDefault:"10" help:"Minutes after a restart before a node that is still unhealthy gets the next action, 1 to 1440. Another value counts as the default."`
	GPURebootWait string        `env:"CIVO_GPU_NODE_REBOOT_WAIT_MINUTES" envDefault:"40" help:"The same for nodes with GPUs."`
	ClusterID     string        `env:"CIVO_CLUSTER_ID" help:"ID of the cluster at Civo. Required to restart nodes, as are the key and the URL."`
	APIKey        schema.Secret `env:"CIVO_API_KEY" help:"Key of Civo's API."`
	APIURL        string        `env:"CIVO_API_URL" help:"URL of Civo's API, for example https://api.civo.com."`
	Region        string        `env:"CIVO_REGION" help:"Region of the cluster at Civo."`

	Off          string        `env:"GPUAAS_CLUSTER_CHECKERS_OFF" help:"Names of checkers that are switched off, separated by commas."`
	MaxRebooting int           `env:"GPUAAS_CLUSTER_MAX_REBOOTING" envDefault:"1" help:"Most nodes that restart at the same time; 0 restarts none."`
	MaxReboots   int           `env:"GPUAAS_CLUSTER_MAX_REBOOTS" envDefault:"2" help:"Most restarts of a node within 24 hours; 0 restarts none. If it is unhealthy after the last one, its phase is Drain and an operator must act."`
	Breaker      bool          `env:"GPUAAS_CLUSTER_BREAKER" envDefault:"true" help:"false restarts nodes also while many of them become unhealthy at once."`
	Namespace    string        `env:"GPUAAS_CLUSTER_NAMESPACE" help:"Namespace of the program's ConfigMap and Lease. Default: that of the pod, or kube-system."`
	ControlPlane string        `env:"GPUAAS_API_URL" help:"URL of the admin API. If it is set, the program reports the conditions of nodes to the control plane and restarts none."`
	Token        schema.Secret `env:"GPUAAS_API_TOKEN" help:"Token for the admin API, with the role reporter."`
	CA           string        `env:"GPUAAS_API_CA_FILE" help:"CAs that may issue the certificate of the admin API, in PEM. Default: those of the system."`

	kubeconfig string
}

func newConfig() *config {
	return &config{Common: daemon.Common{MetricsAddr: defaultMetricsAddr, DrainTimeout: 35 * time.Second}}
}

// Check reports faults in the values.
func (c *config) Check(f *daemon.Faults) {
	if c.MetricsAddr == defaultMetricsAddr {
		c.MetricsAddr = ":" + strconv.Itoa(c.metricsPort())
	}
	f.Check(c.MaxRebooting < 0, "GPUAAS_CLUSTER_MAX_REBOOTING must not be negative, for example 1")
	f.Check(c.MaxReboots < 0 || c.MaxReboots > 100, "GPUAAS_CLUSTER_MAX_REBOOTS must be 0 to 100, for example 2")
	known := checkerNames(nil)
	for _, name := range list(c.Off) {
		f.Check(!slices.Contains(known, name), "GPUAAS_CLUSTER_CHECKERS_OFF: %q is no checker; use %s", text.Line(name, 64), text.Or(known))
	}
	if _, err := poolSelector(c.pools()); err != nil {
		f.Check(true, "%v", err)
	}
	if c.joined() {
		f.Check(c.Token.Empty(), "GPUAAS_API_TOKEN or GPUAAS_API_TOKEN_FILE is not set; GPUAAS_API_URL needs it")
		if err := checkURL("GPUAAS_API_URL", c.ControlPlane); err != nil {
			f.Check(true, "%v", err)
		}
		return
	}
	if _, err := c.executor(); err != nil {
		f.Check(true, "%v; set CIVO_CLUSTER_ID, CIVO_API_KEY and CIVO_API_URL", err)
	}
}

// joined reports whether the program reports to a control plane.
func (c *config) joined() bool { return c.ControlPlane != "" }

// monitorOnly is true unless the setting is a boolean that is false.
func (c *config) monitorOnly() bool {
	on, err := strconv.ParseBool(strings.TrimSpace(c.Monitor))
	return err != nil || on
}

func (c *config) metricsPort() int {
	port, err := strconv.Atoi(strings.TrimSpace(c.Port))
	if err != nil || port < minMetricsPort || port > 65535 {
		return defaultMetricsPort
	}
	return port
}

// pools are the IDs of both variables, each once.
func (c *config) pools() []string {
	all := append(list(c.Pool), list(c.Pools)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// list splits a text at its commas and omits empty parts.
func list(value string) (parts []string) {
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// minutes parses a wait. A value out of range counts as the default.
func minutes(value string, otherwise time.Duration) time.Duration {
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil || n < 1 || n > maxWaitMinutes {
		return otherwise
	}
	return time.Duration(n) * time.Minute
}

func (c *config) rebootWait() time.Duration    { return minutes(c.RebootWait, defaultRebootWait) }
func (c *config) gpuRebootWait() time.Duration { return minutes(c.GPURebootWait, defaultGPURebootWait) }

func (c *config) namespace() string {
	if c.Namespace != "" {
		return c.Namespace
	}
	raw, err := os.ReadFile(namespaceFile)
	if err != nil {
		return defaultNamespace // not in a pod
	}
	return cmp.Or(strings.TrimSpace(string(raw)), defaultNamespace)
}

// executor returns nil if nothing is configured and nothing may be done.
func (c *config) executor() (Executor, error) {
	if c.monitorOnly() && c.APIKey.Empty() {
		return nil, nil //nolint:nilnil // newAgent keeps its default
	}
	e, err := NewCivoExecutor(strings.TrimSpace(c.ClusterID), WithAPIConfig(c.APIKey, strings.TrimSpace(c.APIURL), strings.TrimSpace(c.Region), programVersion()))
	if err != nil {
		return nil, fmt.Errorf("CIVO_NODE_AGENT_MONITOR_ONLY is %t: %w", c.monitorOnly(), err)
	}
	return e, nil
}
