package webui

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// agentScenes are those of what a node runs: workloads, GPU processes, and a release of its
// agent.
func agentScenes() map[string]scene {
	return map[string]scene{
		lifecycle.ReasonGPUsInUse:        {host: "gpu-20", park: parkGPUsInUse},
		lifecycle.ReasonWorkloadsUnknown: {host: "gpu-21", park: parkWorkloadsUnknown},
		string(schema.KindNodeInUse):     {host: "gpu-22", park: parkInUse},
		lifecycle.ReasonReleaseRejected:  {host: "gpu-23", park: parkReleaseRejected},
	}
}

// A process that no workload driver manages uses a GPU.
func parkGPUsInUse(t *testing.T, host string) {
	t.Helper()
	gpuNode(t, host, "case $1 in --query-compute-apps=*) echo '4711, /usr/bin/python3, 75310';; esac")
	drainSoon(t, host)
}

func parkWorkloadsUnknown(t *testing.T, host string) {
	t.Helper()
	gpuNode(t, host, gpuLost)
	drainSoon(t, host)
}

// The workload starts after the last heartbeat.
func parkInUse(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	fault(t, host, "nodes", "UPDATE", "NEW.workloads := '[]';")
	stack.StartWorkload(t, host)
	stack.Run(t, "node", "retire", host, "--reason", "RMA-4411", "--yes", "--no-wait")
}

// The release is not the version that its signature names.
func parkReleaseRejected(t *testing.T, host string) {
	t.Helper()
	stack.Enroll(t, host, "cpu-dev")
	binary := filepath.Join(t.TempDir(), "gpuaas-node-agent")
	require.NoError(t, os.WriteFile(binary, []byte("#!/bin/sh\necho gpuaas-node-agent v98.0.0\n"), 0o600))
	stack.Run(t, "admin", "sign-agent", binary, "--version", "v99.0.0", "--arch", runtime.GOARCH,
		"--key", filepath.Join(stack.Dir, "secrets", "release-key.pem"),
		"--to", filepath.Join(stack.Dir, "releases"))
	stack.Run(t, "node", "upgrade-agent", host, "--version", "v99.0.0", "--no-wait")
}
