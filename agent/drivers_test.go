package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/agent/internal/disk"
	"github.com/gpuaas/gpuaas/agent/workload"
	devworkload "github.com/gpuaas/gpuaas/deploy/dev/workload"
	"github.com/gpuaas/gpuaas/schema/inventory"
)

func TestDriverChoice(t *testing.T) {
	t.Parallel()
	c := Config{Drivers: devworkload.Drivers()}
	for driver, want := range map[string]string{
		"": "workload.unset", inventory.DriverNone: "workload.Unmanaged", devworkload.Name: "*workload.Driver", inventory.DriverSystemd: "*workload.systemdDriver", inventory.DriverDocker: "*workload.dockerDriver", inventory.DriverKubernetes: "*workload.kubeDriver",
		"docker,systemd": "workload.several",
	} {
		c.WorkloadDriver = driver
		got, err := c.newDriver(workload.Config{State: disk.At(t.TempDir() + "/state"), Changed: func() {}, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprintf("%T", got))
	}
	list, err := workload.Unmanaged{}.List(t.Context())
	require.NoError(t, err)
	require.NotNil(t, list)
}

// TestNoProcessDriverInProduction: only a program that registers the driver
// has it, and the error lists the available drivers.
func TestNoProcessDriverInProduction(t *testing.T) {
	t.Parallel()
	c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": "process"}, "")
	require.ErrorContains(t, c.Validate(), `GPUAAS_WORKLOAD_DRIVER: this agent has no driver "process"; it has docker, kubernetes, none, systemd`)
}

// TestInvalidDrivers: a list of drivers names each once, and none is alone.
func TestInvalidDrivers(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		"docker,docker": "twice", "none,docker": "none and another one", "docker,": `no driver ""`, "docker, systemd": `no driver " systemd"`,
		"docker,process": `no driver "process"`,
	} {
		c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": driver}, "")
		require.ErrorContains(t, c.Validate(), "GPUAAS_WORKLOAD_DRIVER")
		require.ErrorContains(t, c.Validate(), want)
		_, err := c.newDriver(workload.Config{})
		require.ErrorContains(t, err, want)
	}
	valid := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": "docker,systemd"}, "")
	require.NotContains(t, valid.Validate().Error(), "DRIVER")
}

// TestDockerSettings: the daemon is one of this node, and only true stops it. Without the
// docker driver, DOCKER_HOST, which may be that of an operator's shell, does not matter.
func TestDockerSettings(t *testing.T) {
	t.Parallel()
	for driver, refused := range map[string]bool{"docker": true, "systemd,docker": true, "systemd": false, "": false} {
		c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": driver, "DOCKER_HOST": "ssh://build-1"}, "")
		require.Equal(t, refused, strings.Contains(c.Validate().Error(), "DOCKER_HOST"), driver)
	}
	c := configOf(map[string]string{"GPUAAS_DOCKER_STOP_DAEMON": "yes"}, "")
	require.ErrorContains(t, c.Validate(), `GPUAAS_DOCKER_STOP_DAEMON: "yes" is not true or false`)
}

// TestKubernetesSettings: each setting of the kubernetes driver is checked, if the driver is used.
func TestKubernetesSettings(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"GPUAAS_KUBECONFIG": "kubelet.conf", "GPUAAS_KUBERNETES_NODE": "GPU 1", "GPUAAS_KUBERNETES_STOP_UNIT": "k3s", "GPUAAS_KUBERNETES_VIP_LEASE": "plndr-cp-lock",
	} {
		for driver, refused := range map[string]bool{"kubernetes": true, "docker,kubernetes": true, "docker": false} {
			c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": driver, name: bad}, "")
			require.Equal(t, refused, strings.Contains(c.Validate().Error(), name+": "), "%s %s", driver, name)
		}
	}
	c := configOf(map[string]string{"GPUAAS_WORKLOAD_DRIVER": "kubernetes", "GPUAAS_KUBECONFIG": "/etc/k", "GPUAAS_KUBERNETES_NODE": "gpu-1.example.com",
		"GPUAAS_KUBERNETES_STOP_UNIT": "k3s-agent.service", "GPUAAS_KUBERNETES_VIP_LEASE": "kube-system/plndr-cp-lock"}, "")
	require.NotContains(t, c.Validate().Error(), "KUBE")
	c.Kubernetes.StopUnit = ""
	require.ErrorContains(t, c.Validate(), "GPUAAS_KUBERNETES_VIP_LEASE has no effect")
}
