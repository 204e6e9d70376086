package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
)

// TestDebContents: the files, modes and fields of the packages.
func TestDebContents(t *testing.T) {
	t.Parallel()
	deb := need.Program(t, "dpkg-deb", "use Debian or Ubuntu")
	r := newTestRelease(t)
	built(t, r, (*release).buildPackages)
	for name, want := range map[string][]string{
		"gpuaas": {"-rwxr-xr-x ./usr/bin/gpuaas", "-rw-r--r-- ./usr/share/man/man1/gpuaas.1.gz", "-rw-r--r-- ./usr/share/bash-completion/completions/gpuaas"},
		"gpuaas-api": {
			"-rwxr-xr-x ./usr/bin/gpuaas-api", "drwxr-x--- ./etc/gpuaas/", "-rw-r----- ./etc/gpuaas/api.env.example",
			"-rw-r--r-- ./usr/lib/systemd/system/gpuaas-api.service", "-rw-r--r-- ./usr/share/gpuaas/gpuaas-node-agent.tar.gz",
		},
		"gpuaas-worker": {"-rwxr-xr-x ./usr/bin/gpuaas-worker", "-rw-r----- ./etc/gpuaas/worker.env.example"},
		"gpuaas-node-agent": {
			"-rwxr-xr-x ./opt/gpuaas/node-agent/bin/gpuaas-node-agent", "drwxr-xr-x ./var/lib/gpuaas/",
			"lrwxrwxrwx ./usr/bin/gpuaas-node-agent -> /opt/gpuaas/node-agent/bin/gpuaas-node-agent",
		},
	} {
		for _, arch := range []string{"amd64", "arm64"} {
			file := filepath.Join(r.out, name+"_1.2.3_"+arch+".deb")
			listed := regexp.MustCompile(`(?m)^(\S+) root/root +\d+ \S+ \S+ `).ReplaceAllString(output(t, deb, "-c", file), "$1 ")
			assert.Subset(t, strings.Split(listed, "\n"), want, file)
			for _, license := range []string{"copyright", noticesFile} {
				assert.Contains(t, listed, "-rw-r--r-- ./usr/share/doc/"+name+"/"+license+"\n", file)
			}
			assert.Equal(t, "1.2.3\n", output(t, deb, "-f", file, "Version"))
			assert.Equal(t, arch+"\n", output(t, deb, "-f", file, "Architecture"))
		}
	}
}

// TestUnits: a packaged unit starts the packaged program, as the packaged user, with the
// packaged configuration.
func TestUnits(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	require.NoError(t, r.stagePackages(t.Context()))
	for _, name := range []string{"api", "worker"} {
		unit, err := os.ReadFile("../../deploy/systemd/gpuaas-" + name + ".service")
		require.NoError(t, err)
		for _, line := range []string{"ExecStart=/usr/bin/gpuaas-" + name, "EnvironmentFile=/etc/gpuaas/" + name + ".env", "User=gpuaas-" + name} {
			assert.Contains(t, string(unit), "\n"+line+"\n")
		}
		users, err := os.ReadFile("../../deploy/release/gpuaas-" + name + ".sysusers")
		require.NoError(t, err)
		assert.Contains(t, string(users), "u gpuaas-"+name+" ")
	}
	unit, err := os.ReadFile(filepath.Join(r.stage(), "gpuaas-node-agent.service"))
	require.NoError(t, err)
	assert.Contains(t, string(unit), "\nExecStart=/opt/gpuaas/node-agent/bin/gpuaas-node-agent run\n")
	assert.NotRegexp(t, "@[A-Z_]+@", string(unit))
}

// host is a root folder with dpkg's database, in which packages are installed.
type host struct {
	t    *testing.T
	root string
}

func newHost(t *testing.T) host {
	t.Helper()
	need.Root(t, "dpkg")
	need.Program(t, "systemd-sysusers", "install systemd")
	h := host{t, t.TempDir()}
	for _, file := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available", "var/lib/dpkg/info/format", "var/lib/dpkg/updates/.keep"} {
		write(t, filepath.Join(h.root, file), "")
	}
	require.NoError(t, os.Remove(filepath.Join(h.root, "var/lib/dpkg/updates/.keep")))
	write(t, filepath.Join(h.root, "var/lib/dpkg/info/format"), "1\n")
	write(t, filepath.Join(h.root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")
	write(t, filepath.Join(h.root, "etc/group"), "root:x:0:\n")
	return h
}

func (h host) dpkg(args ...string) {
	h.t.Helper()
	args = append([]string{"--root=" + h.root, "--force-script-chrootless", "--force-depends", "--log=/dev/null"}, args...)
	output(h.t, need.Program(h.t, "dpkg", "use Debian or Ubuntu"), args...)
}

func (h host) read(path string) string {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(h.root, path))
	require.NoError(h.t, err)
	return string(text)
}

// gpuaasFiles lists what the packages left.
func (h host) gpuaasFiles() (paths []string) {
	h.t.Helper()
	require.NoError(h.t, filepath.WalkDir(h.root, func(path string, _ os.DirEntry, err error) error {
		if strings.Contains(strings.TrimPrefix(path, h.root), "gpuaas") {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// TestInstallUpgradePurge: an upgrade keeps the configuration, a removal keeps
// configuration and users, and nothing is left after a purge.
func TestInstallUpgradePurge(t *testing.T) {
	t.Parallel()
	h, r := newHost(t), newTestRelease(t)
	built(t, r, (*release).buildPackages)
	newer := newTestRelease(t)
	newer.version.Number = "1.2.4"
	built(t, newer, (*release).buildPackages)
	var first, second []string
	for _, name := range packageNames() {
		first = append(first, filepath.Join(r.out, name+"_1.2.3_amd64.deb"))
		second = append(second, filepath.Join(newer.out, name+"_1.2.4_amd64.deb"))
	}
	h.dpkg(append([]string{"-i"}, first...)...)
	assert.Regexp(t, `(?m)^gpuaas:x:\d+:(gpuaas-api,gpuaas-worker|gpuaas-worker,gpuaas-api)$`, h.read("etc/group"))
	assert.Regexp(t, `(?m)^gpuaas-api:.*:/usr/sbin/nologin$`, h.read("etc/passwd"))
	for _, unit := range []string{"gpuaas-api", "gpuaas-worker", "gpuaas-node-agent"} {
		_, err := os.Lstat(filepath.Join(h.root, "etc/systemd/system/multi-user.target.wants", unit+".service"))
		assert.NoError(t, err, "%s is enabled", unit)
	}
	edited := []string{"etc/gpuaas/api.env", "etc/gpuaas/api/token", "etc/gpuaas/worker.env", "etc/gpuaas/node-agent.env", "var/lib/gpuaas-api/key", "var/lib/gpuaas/node-agent/id"}
	for _, path := range edited {
		write(t, filepath.Join(h.root, path), "edited")
	}
	h.dpkg(append([]string{"-i"}, second...)...)
	h.dpkg(append([]string{"-r"}, packageNames()...)...)
	for _, path := range edited {
		assert.Equal(t, "edited", h.read(path))
	}
	assert.Contains(t, h.read("etc/passwd"), "gpuaas-api")
	h.dpkg(append([]string{"-P"}, packageNames()[1:]...)...)
	assert.Empty(t, h.gpuaasFiles())
	for _, file := range []string{"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"} {
		assert.NotContains(t, h.read(file), "gpuaas", file)
	}
}

// TestReinstall: a package that is installed again after its removal is enabled, unless an administrator
// had disabled its unit.
func TestReinstall(t *testing.T) {
	t.Parallel()
	h, r := newHost(t), newTestRelease(t)
	built(t, r, (*release).buildPackages)
	install := func() { h.dpkg("-i", filepath.Join(r.out, "gpuaas-node-agent_1.2.3_amd64.deb")) }
	link := filepath.Join(h.root, "etc/systemd/system/multi-user.target.wants/gpuaas-node-agent.service")
	install()
	h.dpkg("-r", "gpuaas-node-agent")
	_, err := os.Lstat(link)
	require.ErrorIs(t, err, os.ErrNotExist)
	install()
	_, err = os.Lstat(link)
	require.NoError(t, err, "the unit is enabled again")

	require.NoError(t, os.Remove(link)) // as systemctl disable does
	install()
	h.dpkg("-r", "gpuaas-node-agent")
	install()
	_, err = os.Lstat(link)
	require.ErrorIs(t, err, os.ErrNotExist, "the unit stays disabled")
}

// TestPurgeWithAccountsOfAnAdministrator: a group that another user needs does not keep the packages
// from being purged.
func TestPurgeWithAccountsOfAnAdministrator(t *testing.T) {
	t.Parallel()
	h, r := newHost(t), newTestRelease(t)
	h.account("etc/group", "gpuaas:x:1500:")
	h.account("etc/passwd", "gpuaas:x:1500:1500::/home/gpuaas:/bin/sh")
	built(t, r, (*release).buildPackages)
	h.dpkg("-i", filepath.Join(r.out, "gpuaas-api_1.2.3_amd64.deb"))
	h.dpkg("-P", "gpuaas-api")
	assert.NotContains(t, h.read("etc/passwd"), "gpuaas-api")
	assert.Contains(t, h.read("etc/passwd"), "gpuaas:x:1500:1500")
	assert.Contains(t, h.read("etc/group"), "gpuaas:x:1500")
}

// account adds a line to a file of accounts.
func (h host) account(file, line string) {
	h.t.Helper()
	write(h.t, filepath.Join(h.root, file), h.read(file)+line+"\n")
}

// TestScripts: shellcheck has no remarks on the rendered scripts.
func TestScripts(t *testing.T) {
	t.Parallel()
	r := newTestRelease(t)
	require.NoError(t, r.stagePackages(t.Context()))
	scripts, err := filepath.Glob(filepath.Join(r.stage(), "scripts", "*", "*.sh"))
	require.NoError(t, err)
	require.Len(t, scripts, 9)
	for _, script := range scripts {
		output(t, "sh", "-n", script)
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		require.NotRegexp(t, "@[A-Z]+@", string(text))
	}
	if _, err := exec.LookPath("shellcheck"); err == nil {
		output(t, "shellcheck", scripts...)
	}
}
