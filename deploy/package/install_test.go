package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// host is the file system of a host in a temporary folder, with a systemctl that
// only records its arguments, and an unpacked package.
type host struct {
	t                    *testing.T
	root, bin, installer string
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, root: filepath.Join(t.TempDir(), "a host's root"), bin: t.TempDir(), installer: t.TempDir()}
	h.put(filepath.Join(h.bin, "systemctl"), "#!/bin/sh\necho \"$*\" >>\"$DESTDIR/systemctl.log\"\n")
	h.put(filepath.Join(h.installer, "gpuaas-node-agent"), "#!/bin/sh\necho v1\n")
	for _, name := range []string{"install-node-agent.sh", "gpuaas-node-agent.service"} {
		text, err := files.ReadFile(name)
		require.NoError(t, err)
		h.put(filepath.Join(h.installer, name), string(text))
	}
	require.NoError(t, os.MkdirAll(h.root, 0o755))
	return h
}

func (h *host) put(path, text string) {
	h.t.Helper()
	require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(h.t, os.WriteFile(path, []byte(text), 0o700))
}

func (h *host) write(path, text string) { h.t.Helper(); h.put(filepath.Join(h.root, path), text) }

func (h *host) read(path string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.root, path))
	require.NoError(h.t, err)
	return string(text)
}

// stale lists what was moved aside, without the time in the name.
func (h *host) stale() (names []string) {
	h.t.Helper()
	require.NoError(h.t, filepath.WalkDir(h.root, func(path string, _ os.DirEntry, err error) error {
		if name, _, ok := strings.Cut(strings.TrimPrefix(path, h.root), ".stale-"); ok && !strings.Contains(path[len(h.root)+len(name)+7:], "/") {
			names = append(names, name)
		}
		return err
	}))
	return names
}

func (h *host) install(env ...string) (said string, err error) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), "sh", filepath.Join(h.installer, "install-node-agent.sh"))
	cmd.Env = append([]string{"DESTDIR=" + h.root, "PATH=" + h.bin + ":" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The manual mode: the bundle's variables are exported and the installer is run.
func TestInstallByHand(t *testing.T) {
	h := newHost(t)
	h.write("/etc/gpuaas/node-agent.env", "GPUAAS_NODE_ID=\"n1\"\nGPUAAS_ENROLLMENT_TOKEN=\"old\"\nGPUAAS_WORKLOAD_DRIVER=docker\nbroken\n")
	h.write("/etc/gpuaas/cert.pem", "old")
	h.write("/etc/gpuaas/key.pem", "old")
	h.write("/var/lib/gpuaas/node-agent/identity/1/cert.pem", "old")
	h.write("/var/lib/gpuaas/node-agent/recovery-key.pem", "old")
	h.write("/var/lib/gpuaas/node-agent/journal/1", "work")
	said, err := h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=new", "GPUAAS_ENV=dev")
	require.NoError(t, err, said)
	assert.ElementsMatch(t, []string{"/etc/gpuaas/cert.pem", "/etc/gpuaas/key.pem", "/var/lib/gpuaas/node-agent/identity",
		"/var/lib/gpuaas/node-agent/recovery-key.pem"}, h.stale())
	assert.Equal(t, "GPUAAS_WORKLOAD_DRIVER=docker\nGPUAAS_NODE_ID=\"n1\"\nGPUAAS_ENROLLMENT_TOKEN=\"new\"\nGPUAAS_ENV=\"dev\"\n",
		h.read("/etc/gpuaas/node-agent.env"))
	assert.Equal(t, "work", h.read("/var/lib/gpuaas/node-agent/journal/1"), "the journal of the same node is kept")
	assert.Equal(t, "stop gpuaas-node-agent.service\ndaemon-reload\nenable gpuaas-node-agent.service\nrestart gpuaas-node-agent.service\n",
		h.read("/systemctl.log"))
	unit := h.read("/etc/systemd/system/gpuaas-node-agent.service")
	assert.NotRegexp(t, "@[A-Z_]+@", unit)
	assert.Contains(t, unit, "\nReadWritePaths=-/var/lib/gpuaas -/etc/gpuaas\n")
	for _, folder := range []string{"/opt/gpuaas", "/opt/gpuaas/node-agent/bin"} {
		info, err := os.Stat(filepath.Join(h.root, folder))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o755), info.Mode().Perm(), folder)
	}

	// Without a bundle only the program changes. With another node's bundle the
	// whole state is renamed.
	said, err = h.install()
	require.NoError(t, err, said)
	assert.Contains(t, h.read("/etc/gpuaas/node-agent.env"), `GPUAAS_ENROLLMENT_TOKEN="new"`)
	said, err = h.install("GPUAAS_NODE_ID=n2", "GPUAAS_ENROLLMENT_TOKEN=newer")
	require.NoError(t, err, said)
	assert.NoFileExists(t, h.root+"/var/lib/gpuaas/node-agent/journal/1")
}

// The unit may write to the folders that the env file names, and to no others.
func TestInstallWithOtherFolders(t *testing.T) {
	h := newHost(t)
	h.write("/etc/gpuaas/node-agent.env", "GPUAAS_STATE_DIR=/srv/agent\nGPUAAS_CERT_PATH=\"/srv/tls/cert.pem\"\nGPUAAS_KEY_PATH=/etc/gpuaas/key.pem\n"+
		"GPUAAS_CA_BUNDLE_PATH=/a/../b/ca.crt\n")
	said, err := h.install()
	require.NoError(t, err, said)
	assert.Contains(t, h.read("/etc/systemd/system/gpuaas-node-agent.service"), "\nReadWritePaths=-/var/lib/gpuaas -/etc/gpuaas -/srv/agent -/srv/tls\n")
	for _, folder := range []string{"/var/lib/gpuaas", "/srv/agent", "/srv/tls"} {
		assert.DirExists(t, h.root+folder, "the agent cannot make it in a read-only file system")
	}
}

// The bundle may name another root, env file and unit.
func TestInstallElsewhere(t *testing.T) {
	h := newHost(t)
	said, err := h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=new", "GPUAAS_NODE_AGENT_INSTALL_ROOT=/srv/agent",
		"GPUAAS_NODE_AGENT_ENV_FILE=/srv/etc/node.env", "GPUAAS_NODE_AGENT_SYSTEMD_UNIT=other-agent.service")
	require.NoError(t, err, said)
	assert.FileExists(t, h.root+"/srv/agent/bin/gpuaas-node-agent")
	assert.Contains(t, h.read("/srv/etc/node.env"), `GPUAAS_ENROLLMENT_TOKEN="new"`)
	unit := h.read("/etc/systemd/system/other-agent.service")
	assert.Contains(t, unit, "/srv/agent/bin/gpuaas-node-agent")
	assert.Contains(t, unit, "/srv/etc/node.env")
	assert.Contains(t, h.read("/systemctl.log"), "restart other-agent.service")
	assert.NoDirExists(t, h.root+"/opt")
	assert.NoFileExists(t, h.root+"/etc/gpuaas/node-agent.env")
}

func TestInstallRefusals(t *testing.T) {
	h := newHost(t)
	h.write("/etc/gpuaas/cert.pem", "old")
	said, err := h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=a\"b")
	require.Error(t, err)
	assert.Contains(t, said, "GPUAAS_ENROLLMENT_TOKEN contains a quote")
	assert.NotContains(t, said, `a"b`)
	canary := filepath.Join(t.TempDir(), "canary")
	for _, value := range []string{"/x|e\n1e touch " + canary + "\n#", "/$(touch " + canary + ")", "/x\nUser=x", "/x%n", "x y", "/a/../b"} {
		for _, name := range []string{"GPUAAS_NODE_AGENT_INSTALL_ROOT", "GPUAAS_NODE_AGENT_ENV_FILE", "GPUAAS_NODE_AGENT_SYSTEMD_UNIT"} {
			said, err = h.install(name + "=" + value)
			require.Error(t, err, value)
			assert.Contains(t, said, "nothing was changed")
		}
		said, err = h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=t", "GPUAAS_ENV=dev\nGPUAAS_API_URL="+value)
		require.Error(t, err)
		assert.Contains(t, said, "GPUAAS_ENV contains")
	}
	assert.NoFileExists(t, canary)
	assert.NoFileExists(t, h.root+"/systemctl.log")
	h.put(filepath.Join(h.installer, "gpuaas-node-agent"), "#!/bin/sh\nexit 126\n")
	said, err = h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=new")
	require.Error(t, err)
	assert.Contains(t, said, "cannot run gpuaas-node-agent; nothing was changed")
	assert.Equal(t, "old", h.read("/etc/gpuaas/cert.pem"))
	assert.Empty(t, h.stale())
}

// The package of a release has a binary for each architecture, and the installer puts the
// host's into place.
func TestInstallSelectsArchitecture(t *testing.T) {
	for machine, want := range map[string]string{"x86_64": "amd64", "aarch64": "arm64"} {
		h := newHost(t)
		h.put(filepath.Join(h.bin, "uname"), "#!/bin/sh\necho "+machine+"\n")
		require.NoError(t, os.Remove(filepath.Join(h.installer, "gpuaas-node-agent")))
		said, err := h.install()
		require.Error(t, err)
		assert.Contains(t, said, "has no binary for "+machine)
		for _, arch := range []string{"amd64", "arm64"} {
			h.put(filepath.Join(h.installer, "gpuaas-node-agent-"+arch), "#!/bin/sh\necho "+arch+"\n")
		}
		said, err = h.install()
		require.NoError(t, err, said)
		assert.Contains(t, h.read("/opt/gpuaas/node-agent/bin/gpuaas-node-agent"), "echo "+want)
	}
}

// On a host with the package gpuaas-node-agent, the installer leaves the program and the
// unit to it, unless the installation has other paths.
func TestInstallOnPackagedHost(t *testing.T) {
	h := newHost(t)
	h.write("/usr/lib/systemd/system/gpuaas-node-agent.service", "packaged")
	h.write("/opt/gpuaas/node-agent/bin/gpuaas-node-agent", "packaged")
	said, err := h.install("GPUAAS_NODE_ID=n1", "GPUAAS_ENROLLMENT_TOKEN=new")
	require.NoError(t, err, said)
	assert.Contains(t, said, "its program and unit are kept")
	assert.Equal(t, "packaged", h.read("/opt/gpuaas/node-agent/bin/gpuaas-node-agent"))
	assert.NoFileExists(t, h.root+"/etc/systemd/system/gpuaas-node-agent.service")
	assert.Contains(t, h.read("/etc/gpuaas/node-agent.env"), `GPUAAS_ENROLLMENT_TOKEN="new"`)
	assert.Contains(t, h.read("/systemctl.log"), "restart gpuaas-node-agent.service")
	h.write("/etc/gpuaas/node-agent.env", "GPUAAS_STATE_DIR=/srv/agent\n")
	said, err = h.install()
	require.NoError(t, err, said)
	assert.Contains(t, h.read("/etc/systemd/system/gpuaas-node-agent.service"), "/srv/agent", "the packaged unit cannot write there")
}
