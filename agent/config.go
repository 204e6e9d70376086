package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/agent/health"
	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/envfile"
	"github.com/gpuaas/gpuaas/agent/workload"
	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/inventory"
	"github.com/gpuaas/gpuaas/schema/trust"
	"github.com/gpuaas/gpuaas/schema/version"
)

// EnvFileVar names the variable that moves the env file from
// trust.DefaultEnvFile.
const EnvFileVar = "GPUAAS_NODE_AGENT_ENV_FILE"

// Config is the agent's configuration. LoadConfig alone reads the environment.
type Config struct {
	NodeID string
	// APIURL is the node API's https address by host name; no path.
	APIURL string
	// EnrollmentToken may be empty once the node is enrolled.
	EnrollmentToken schema.Secret
	// SigningPubkeys is a trust.TaskTrust in its text form.
	SigningPubkeys string
	// CABundlePath verifies the node API's certificate; the system's roots are
	// never used. Defaults to trust.DefaultCABundlePath.
	CABundlePath string
	// NodeCABundlePath holds the issuers of node certificates; the agent only
	// compares its own certificate with it. Defaults to
	// trust.DefaultNodeCABundlePath.
	NodeCABundlePath string
	// CertPath defaults to trust.DefaultCertPath.
	CertPath string
	// KeyPath defaults to trust.DefaultKeyPath.
	KeyPath string
	Env     string
	// StateDir holds journal, flags and lock. Defaults to
	// trust.DefaultStateDir.
	StateDir string

	// WorkloadDriver is systemd, docker, kubernetes, none for a node without workloads, a name in
	// Drivers, or several of them but none, separated by commas. Without one, the node's
	// workloads are unknown, and no drain succeeds.
	WorkloadDriver string
	// Drivers are further workload drivers, by name.
	Drivers map[string]workload.Maker
	// WorkloadSlice is the systemd driver's slice. Defaults to
	// DefaultWorkloadSlice.
	WorkloadSlice string
	// WorkloadLabel marks the docker driver's containers. Defaults to
	// DefaultWorkloadLabel.
	WorkloadLabel string
	// DockerHost is the address of the Docker daemon, unix:// and a path. Defaults to
	// workload.DefaultDockerHost.
	DockerHost string
	// DockerStopDaemon is "true" if a drain stops the Docker daemon after the containers,
	// "false" or empty if not.
	DockerStopDaemon string
	// Kubernetes configures the kubernetes driver.
	Kubernetes workload.Kubernetes

	// ReleasePubkeys verify releases of the agent: see trust.ParseReleaseKeys. Without any,
	// the node accepts no upgrade.
	ReleasePubkeys string

	// NvidiaSMI is the absolute path of nvidia-smi. Without one, it is looked up in PATH.
	NvidiaSMI string

	// HealthChecks are the health checks of the node: "all", "none", or names after a minus to switch
	// them off, separated by commas: -gpu_fan,-host_clock. LoadConfig defaults to all; empty is none.
	HealthChecks string
	// BurnIn is the command of the longest test after a repair: an absolute path and arguments,
	// separated by spaces. No shell reads it. Without one, the test is skipped.
	BurnIn string

	// EnvFile is the file that was read, "" if there was none.
	EnvFile string
	// Replaced are the variables whose value in the env file the environment replaced by
	// another one.
	Replaced []string

	trust       trust.TaskTrust
	releaseKeys []trust.VerifierKey
}

// drivers are the workload drivers that the configuration may name.
func (c Config) drivers() map[string]workload.Maker {
	all := maps.Clone(c.Drivers)
	if all == nil {
		all = map[string]workload.Maker{}
	}
	all[inventory.DriverSystemd], all[inventory.DriverDocker], all[inventory.DriverNone] = workload.NewSystemd, workload.NewDocker, workload.NewNone
	all[inventory.DriverKubernetes] = workload.NewKubernetes
	return all
}

// driverNames are the configured drivers in their order.
func (c Config) driverNames() []string { return strings.Split(c.WorkloadDriver, ",") }

// checkDriver rejects workload drivers that this agent does not have, and settings that the
// configured ones do not accept.
func (c Config) checkDriver() error {
	if c.WorkloadDriver == "" {
		return nil
	}
	all := c.drivers()
	for _, name := range c.driverNames() {
		if all[name] == nil {
			return fmt.Errorf("GPUAAS_WORKLOAD_DRIVER: this agent has no driver %q; it has %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
	}
	if !inventory.ValidDrivers(c.WorkloadDriver) {
		return fmt.Errorf("GPUAAS_WORKLOAD_DRIVER: %q names a driver twice, or none and another one", c.WorkloadDriver)
	}
	if slices.Contains(c.driverNames(), inventory.DriverKubernetes) {
		if err := c.Kubernetes.Check(); err != nil {
			return err
		}
	}
	if !slices.Contains(c.driverNames(), inventory.DriverDocker) {
		return nil
	}
	_, err := workload.DockerSocket(cmp.Or(c.DockerHost, workload.DefaultDockerHost))
	return err
}

// newDriver makes the configured driver; d has its other dependencies.
func (c Config) newDriver(d workload.Config) (workload.Driver, error) {
	d.Slice, d.Label = c.WorkloadSlice, c.WorkloadLabel
	d.DockerHost, d.StopDocker, d.Kubernetes = c.DockerHost, c.DockerStopDaemon == "true", c.Kubernetes
	if c.WorkloadDriver == "" {
		return workload.NewUnset(d)
	}
	if err := c.checkDriver(); err != nil {
		return nil, err
	}
	var made []workload.Named
	for _, name := range c.driverNames() {
		one, err := c.drivers()[name](d)
		if err != nil {
			return nil, err
		}
		made = append(made, workload.Named{Name: name, Driver: one})
	}
	if len(made) == 1 {
		return made[0].Driver, nil
	}
	return workload.NewSeveral(made), nil
}

// identity is the part that the identity depends on.
func (c Config) identity() identity.Config {
	return identity.Config{
		NodeID: c.NodeID, Env: c.Env, Server: c.APIURL, Token: c.EnrollmentToken, EnvFile: c.EnvFile,
		CertPath: c.CertPath, KeyPath: c.KeyPath, NodeCABundlePath: c.NodeCABundlePath, AgentVersion: version.Version(),
	}
}

// LoadConfig reads the environment (KEY=value entries) and the env file it
// names; the environment wins. A missing file is an error only when it was
// named. The result is not validated.
func LoadConfig(env []string) (Config, error) {
	vars := map[string]string{}
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			vars[k] = v
		}
	}
	path, named := vars[EnvFileVar]
	if path == "" {
		path, named = trust.DefaultEnvFile, false
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return configOf(vars, ""), nil
	case err != nil:
		return Config{}, schema.Wrap(schema.KindInvalidRequest, err, "reading %s", EnvFileVar)
	}
	file, err := envfile.Parse(string(text))
	if err != nil {
		return Config{}, schema.Wrap(schema.KindInvalidRequest, err, "env file %s", path)
	}
	var replaced []string
	for name, value := range file {
		if other, ok := vars[name]; ok && other != value {
			replaced = append(replaced, name)
		}
	}
	maps.Copy(file, vars)
	c := configOf(file, path)
	c.Replaced = slices.Sorted(slices.Values(replaced))
	return c, nil
}

func configOf(vars map[string]string, file string) Config {
	get := func(key, def string) string {
		if v := strings.TrimSpace(vars[key]); v != "" {
			return v
		}
		return def
	}
	return Config{
		NodeID:           get("GPUAAS_NODE_ID", ""),
		APIURL:           strings.TrimRight(get("GPUAAS_API_URL", ""), "/"),
		EnrollmentToken:  schema.NewSecret(get("GPUAAS_ENROLLMENT_TOKEN", "")),
		SigningPubkeys:   get("GPUAAS_TASK_SIGNING_PUBKEYS", ""),
		CABundlePath:     get("GPUAAS_CA_BUNDLE_PATH", trust.DefaultCABundlePath),
		NodeCABundlePath: get("GPUAAS_NODE_CERT_CA_BUNDLE_PATH", trust.DefaultNodeCABundlePath),
		CertPath:         get("GPUAAS_CERT_PATH", trust.DefaultCertPath),
		KeyPath:          get("GPUAAS_KEY_PATH", trust.DefaultKeyPath),
		Env:              get("GPUAAS_ENV", ""),
		StateDir:         get("GPUAAS_STATE_DIR", trust.DefaultStateDir),
		WorkloadDriver:   get("GPUAAS_WORKLOAD_DRIVER", ""),
		WorkloadSlice:    get("GPUAAS_WORKLOAD_SLICE", workload.DefaultSlice),
		WorkloadLabel:    get("GPUAAS_WORKLOAD_LABEL", workload.DefaultLabel),
		DockerHost:       get("DOCKER_HOST", workload.DefaultDockerHost),
		DockerStopDaemon: get("GPUAAS_DOCKER_STOP_DAEMON", "false"),
		Kubernetes: workload.Kubernetes{
			Kubeconfig: get("GPUAAS_KUBECONFIG", ""), Node: get("GPUAAS_KUBERNETES_NODE", ""),
			StopUnit: get("GPUAAS_KUBERNETES_STOP_UNIT", ""), VIPLease: get("GPUAAS_KUBERNETES_VIP_LEASE", ""),
		},
		NvidiaSMI:      get("GPUAAS_NVIDIA_SMI", ""),
		ReleasePubkeys: get("GPUAAS_RELEASE_PUBKEYS", ""),
		HealthChecks:   get("GPUAAS_HEALTH_CHECKS", "all"),
		BurnIn:         get("GPUAAS_BURN_IN", ""),
		EnvFile:        file,
	}
}

// Validate checks the whole configuration and lists every fault at once, as one
// KindInvalidRequest error. It parses the trust.
func (c *Config) Validate() error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	if !schema.IsID(c.NodeID) {
		fault("GPUAAS_NODE_ID: %q is not a node id", c.NodeID)
	}
	if err := trust.CheckAPIURL(c.APIURL); err != nil {
		fault("GPUAAS_API_URL: %v", err)
	}
	if _, _, err := trust.ParseToken(c.EnrollmentToken.Reveal()); !c.EnrollmentToken.Empty() && err != nil {
		fault("GPUAAS_ENROLLMENT_TOKEN: %v", err)
	}
	var err error
	if c.trust, err = trust.ParseTaskTrust(c.SigningPubkeys); err != nil {
		fault("GPUAAS_TASK_SIGNING_PUBKEYS: %v", err)
	}
	if c.releaseKeys, err = trust.ParseReleaseKeys(c.ReleasePubkeys); err != nil {
		fault("GPUAAS_RELEASE_PUBKEYS: %v", err)
	}
	if c.Env == "" || strings.ContainsAny(c.Env, "/:@?# ") {
		fault("GPUAAS_ENV: %q is not an environment name", c.Env)
	}
	if c.CertPath == c.KeyPath {
		fault("GPUAAS_CERT_PATH and GPUAAS_KEY_PATH are the same file")
	}
	if c.NvidiaSMI != "" && !filepath.IsAbs(c.NvidiaSMI) {
		fault("GPUAAS_NVIDIA_SMI: %q is not an absolute path", c.NvidiaSMI)
	}
	if _, err := health.ParseSelection(c.HealthChecks); err != nil {
		fault("GPUAAS_HEALTH_CHECKS: %v", err)
	}
	if c.BurnIn != "" && !filepath.IsAbs(c.BurnIn) {
		fault("GPUAAS_BURN_IN: %q does not begin with an absolute path", c.BurnIn)
	}
	if err := c.checkDriver(); err != nil {
		fault("%v", err)
	}
	if c.DockerStopDaemon != "" && c.DockerStopDaemon != "true" && c.DockerStopDaemon != "false" {
		fault("GPUAAS_DOCKER_STOP_DAEMON: %q is not true or false", c.DockerStopDaemon)
	}
	if len(faults) > 0 {
		return schema.NewError(schema.KindInvalidRequest, "configuration: %s", strings.Join(faults, "; "))
	}
	return nil
}
