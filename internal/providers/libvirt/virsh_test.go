package libvirt

import (
	"context"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/activities"
	"github.com/gpuaas/gpuaas/schema/machine"
)

const testID = "5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d"

func testProvider(t *testing.T, r Runner) *Provider {
	t.Helper()
	p, err := NewWithRunner(Settings{Mode: Recorder, Owner: "dev", StateDir: t.TempDir(), ImageBase: "/images", CallTimeout: time.Second}, r)
	require.NoError(t, err)
	return p
}

// The messages are those of virsh 9.0.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stderr, command string
		want            problem
		reason          string
	}{
		{"failed to connect to the hypervisor\nFailed to connect socket to '/run/x': No such file or directory", "create", noConnection, machine.ReasonUnavailable},
		{"failed to connect to the hypervisor\nFailed to connect socket to '/run/x': Permission denied", "create", unauthorized, machine.ReasonAuth},
		{"failed to connect to the hypervisor\nauthentication unavailable: no polkit agent available", "list", unauthorized, machine.ReasonAuth},
		{"Failed to destroy domain 'x'\nEnd of file while reading data: Input/output error", "destroy", lost, machine.ReasonAmbiguous},
		{"failed to get domain 'x'", "start", noDomain, machine.ReasonUnavailable},
		{"Failed to create domain from /dev/stdin\nRequested operation is not valid: domain 'x' is already active", "create", active, machine.ReasonUnavailable},
		{"Domain is already active", "start", active, machine.ReasonUnavailable},
		{"Failed to destroy domain 'x'\nRequested operation is not valid: domain is not running", "destroy", inactive, machine.ReasonUnavailable},
		{"Timed out during operation: cannot acquire state change lock (held by monitor=remoteDispatchDomainCreate)", "destroy", busy, machine.ReasonUnavailable},
		{"Failed to create domain from /dev/stdin\ninternal error: process exited while connecting to monitor: cannot set up guest memory 'pc.ram': Cannot allocate memory", "create", full, machine.ReasonCapacity},
		{"Failed to define domain from /dev/stdin\nXML error: an os <type> must be specified", "define", refused, machine.ReasonRejected},
		{"Failed to create domain from /dev/stdin\ninternal error: qemu unexpectedly closed the monitor: qemu: could not open kernel file '/nonexist': No such file or directory", "create", refused, machine.ReasonRejected},
		{"Failed to create domain from /dev/stdin\noperation failed: domain 'f1' already exists with uuid 3e9912cc-5b7a-44df-9a83-a2d222fc2b0c", "create", refused, machine.ReasonRejected},
		{"Failed to destroy domain 'x'\ninternal error: Failed to terminate process 7 with SIGKILL: Device or resource busy", "destroy", refused, machine.ReasonAmbiguous},
		{"something new", "undefine", unknown, machine.ReasonAmbiguous},
	} {
		got := classify(Result{Exit: 1, Stderr: []byte("error: " + strings.ReplaceAll(c.stderr, "\n", "\nerror: ") + "\n")})
		require.Equal(t, c.want, got, c.stderr)
		require.Equal(t, c.reason, (&failure{problem: got, command: c.command, changes: c.command != "list"}).reason(), c.stderr)
	}
	require.Equal(t, machine.ReasonUnavailable, (&failure{problem: lost, command: "list"}).reason())
}

func TestDetail(t *testing.T) {
	t.Parallel()
	require.Equal(t, "failed to get domain 'a': it  [31m is gone", detailOf(Result{Stderr: []byte("error: failed to get domain 'a'\nerror: it \x1b[31m is gone\n\n")}))
	require.Equal(t, "exit code 7 without a message", detailOf(Result{Exit: 7}))
	require.Len(t, detailOf(Result{Stderr: []byte(strings.Repeat("x", 5000))}), maxDetail)
}

func TestDefinition(t *testing.T) {
	t.Parallel()
	p := testProvider(t, NewRecording())
	s := machine.Spec{InstanceID: testID, NodeID: "n", Host: "gpu-17 <&>"}
	d := p.newDomain(s, machine.Type{ID: SmallType, CPUs: 1, MemoryMiB: 512}, time.Unix(0, 0))
	text, err := d.withBoot("/state/boot.json").encode()
	require.NoError(t, err)
	want := strings.ReplaceAll(definition, "STATE", p.settings.StateDir)
	require.Equal(t, want, string(text))
	var back domainXML
	require.NoError(t, xml.Unmarshal(text, &back))
	require.True(t, back.owned("dev"))
	require.False(t, back.owned("other"))
	text, err = d.encode()
	require.NoError(t, err)
	require.NotContains(t, string(text), "fwcfg")

	p.settings.NetbootPort, p.files.ipxe = 8470, "/ipxe"
	text, err = p.newDomain(s, machine.Type{ID: SmallType, CPUs: 1, MemoryMiB: 512}, time.Unix(0, 0)).withBoot("/state/boot.json").encode()
	require.NoError(t, err)
	require.Equal(t, strings.NewReplacer("/images/vmlinuz", "/ipxe", "    <initrd>/images/initramfs.cpio</initrd>\n", "",
		cmdLine+"</cmdline>\n", "dhcp &amp;&amp; chain http://10.0.2.2:8470/boot.ipxe || sleep 5 &amp;&amp; reboot</cmdline>\n    <bios useserial=\"yes\"></bios>\n").Replace(want), string(text))
}

const definition = `<domain type="qemu">
  <name>gpuaas-5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d</name>
  <uuid>5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d</uuid>
  <metadata>
    <machine xmlns="https://github.com/gpuaas/gpuaas/machine/1">
      <owner>dev</owner>
      <instance>5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d</instance>
      <node>n</node>
      <host>gpu-17 &lt;&amp;&gt;</host>
      <region>region-local-qemu</region>
      <type>type-qemu-1cpu-512mb</type>
      <created_at>1970-01-01T00:00:00Z</created_at>
    </machine>
  </metadata>
  <memory unit="MiB">512</memory>
  <vcpu>1</vcpu>
  <sysinfo type="smbios">
    <system>
      <entry name="manufacturer">gpuaas</entry>
      <entry name="product">type-qemu-1cpu-512mb</entry>
      <entry name="serial">5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d</entry>
      <entry name="uuid">5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d</entry>
    </system>
  </sysinfo>
  <sysinfo type="fwcfg">
    <entry name="opt/gpuaas/bootstrap" file="/state/boot.json"></entry>
  </sysinfo>
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
    <kernel>/images/vmlinuz</kernel>
    <initrd>/images/initramfs.cpio</initrd>
    <cmdline>console=ttyS0 panic=10 quiet loglevel=3</cmdline>
    <smbios mode="sysinfo"></smbios>
  </os>
  <features>
    <acpi></acpi>
    <apic></apic>
  </features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>preserve</on_crash>
  <devices>
    <disk type="file" device="disk">
      <driver name="qemu" type="raw"></driver>
      <source file="STATE/disks/5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d.img"></source>
      <target dev="vda" bus="virtio"></target>
      <serial>gpuaas-state</serial>
    </disk>
    <interface type="user">
      <model type="virtio"></model>
    </interface>
    <serial type="file">
      <source path="STATE/consoles/5f6a1d0e-3a44-4c0e-9d7e-0c1f9a8b7c6d.log" append="on"></source>
    </serial>
    <memballoon model="none"></memballoon>
  </devices>
</domain>
`

func TestParse(t *testing.T) {
	t.Parallel()
	xmlOf := func(name string) string {
		return "<domain type='qemu' id='1'>\n  <name>" + name + "</name>\n  <uuid>" + testID + "</uuid>\n</domain>\n\n"
	}
	statsOf := func(name string) string { return "Domain: '" + name + "'\n  state.state=3\n  state.reason=11\n\n" }
	require.Len(t, parse([]byte(xmlOf("a")+statsOf("a")+xmlOf("b")+statsOf("b"))), 2)
	got := parse([]byte(xmlOf("a") + statsOf("a") + xmlOf("b")))
	require.Len(t, got, 1)
	require.Equal(t, state{3, 11}, got["a"].state)
	for _, bad := range []string{"", "garbage", "<domain type='qemu'>\n  <name>a", "<domain type='qemu'>\n<name>a</nome>\n</domain>\n" + statsOf("a"), statsOf("a"), "Domain: 'a'\n  state.state=x\n" + xmlOf("a")} {
		require.Empty(t, parse([]byte(bad)), bad)
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for s, want := range map[state]machine.Phase{
		{0, 0}: machine.Creating, {1, 1}: machine.Running, {2, 0}: machine.Running, {3, 11}: machine.Creating, {3, 1}: machine.Failed,
		{3, 3}: machine.Running, {3, 5}: machine.Failed, {4, 1}: machine.Running, {5, 0}: machine.Stopped, {5, 1}: machine.Stopped, {5, 2}: machine.Stopped,
		{5, 3}: machine.Failed, {5, 6}: machine.Failed, {6, 0}: machine.Failed, {7, 0}: machine.Stopped, {99, 0}: machine.Failed,
	} {
		got, detail := s.phase()
		require.Equal(t, want, got, s)
		require.NotEmpty(t, detail)
	}
}

// scripted answers by the first word of the command.
type scripted map[string]func() (Result, error)

// Run implements Runner.
func (s scripted) Run(ctx context.Context, args []string, _ []byte) (Result, error) {
	if f := s[strings.Fields(args[0])[0]]; f != nil {
		return f()
	}
	<-ctx.Done()
	return Result{}, ctx.Err()
}

// virsh prints the same message if a domain does not exist and if the connection ends while it
// looks for one.
func TestMissingIsCertain(t *testing.T) {
	t.Parallel()
	const name = "gpuaas-" + testID
	notFound := func() (Result, error) {
		return Result{Exit: 1, Stderr: []byte("error: failed to get domain '" + name + "'\n")}, nil
	}
	list := func(text string, exit int) func() (Result, error) {
		return func() (Result, error) { return Result{Exit: exit, Stdout: []byte(text)}, nil }
	}
	ref := machine.Ref{InstanceID: testID}
	for want, s := range map[string]scripted{
		machine.ReasonMissing:     {"dumpxml": notFound, "list": list("other\n", 0)},
		machine.ReasonUnavailable: {"dumpxml": notFound, "list": list("", 1)},
	} {
		_, err := testProvider(t, s).Describe(t.Context(), ref)
		require.True(t, machine.Is(err, want), "%s: %v", want, err)
	}
	for _, s := range []scripted{{"dumpxml": notFound, "list": list(name+"\n", 0)}, {"dumpxml": list("", 0)}, {}} {
		p := testProvider(t, s)
		_, err := p.Describe(t.Context(), ref)
		require.True(t, machine.Is(err, machine.ReasonUnavailable), err)
		require.True(t, machine.Is(p.Delete(t.Context(), ref), machine.ReasonUnavailable))
	}
}

func TestBootFile(t *testing.T) {
	t.Parallel()
	f := files{state: t.TempDir()}
	require.NoError(t, f.prepare())
	s := machine.Spec{InstanceID: testID, Host: "gpu-17"}
	var path string
	for range 2 { // the second call replaces the file
		var err error
		path, err = f.writeBoot(s, activities.Boot{BaseURL: "https://api", CABundlePEM: "pem", Reference: "ref"}, Settings{Hosts: map[string]string{"api": "10.0.2.2"}})
		require.NoError(t, err)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{"base_url":"https://api","reference":"ref","ca_bundle_pem":"pem","host":"gpu-17","hosts":{"api":"10.0.2.2"}}`, string(text))
	require.NoError(t, f.remove(testID))
	require.NoFileExists(t, path)
	for _, dir := range []string{"", consoleDir, bootDir, diskDir, lockDir} {
		info, err := os.Stat(filepath.Join(f.state, dir))
		require.NoError(t, err)
		if dir != "" {
			require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), dir)
		}
	}
}

func TestConsoleTail(t *testing.T) {
	t.Parallel()
	f := files{state: t.TempDir()}
	require.NoError(t, f.prepare())
	tail, err := f.consoleTail(testID)
	require.NoError(t, err)
	require.Empty(t, tail)
	require.NoError(t, os.WriteFile(f.console(testID), []byte(strings.Repeat("x", machine.MaxConsole)+"end"), 0o600))
	require.NoError(t, os.WriteFile(f.console(testID)+".0", nil, 0o600))
	tail, err = f.consoleTail(testID)
	require.NoError(t, err)
	require.Len(t, tail, machine.MaxConsole)
	require.True(t, strings.HasSuffix(string(tail), "xend"))
	require.NoError(t, f.remove(testID))
	left, err := os.ReadDir(filepath.Join(f.state, consoleDir))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestLinks: QEMU's user owns folders of the provider. What it puts there is not followed out of
// the state folder, and does not block.
func TestLinks(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o600))
	f := files{state: t.TempDir(), user: os.Getuid()}
	require.NoError(t, f.prepare())
	require.NoError(t, os.Symlink(secret, f.console(testID)))
	tail, err := f.consoleTail(testID)
	require.Error(t, err)
	require.Empty(t, tail)
	require.NoError(t, f.remove(testID))
	require.FileExists(t, secret)

	require.NoError(t, syscall.Mkfifo(f.console(testID), 0o600))
	_, err = f.consoleTail(testID)
	require.ErrorContains(t, err, "not a file")

	require.NoError(t, os.Remove(filepath.Join(f.state, bootDir)))
	require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(f.state, bootDir)))
	require.NoError(t, f.prepare())
	_, err = f.writeBoot(machine.Spec{InstanceID: testID, Host: "gpu-17"}, activities.Boot{}, Settings{})
	require.Error(t, err)
	left, err := os.ReadDir(filepath.Dir(secret))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	f := files{state: t.TempDir()}
	require.NoError(t, f.prepare())
	unlock, err := f.lock(t.Context(), testID)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = f.lock(ctx, testID)
	require.True(t, machine.Is(err, machine.ReasonUnavailable), err)
	unlock()
	unlock, err = f.lock(t.Context(), testID)
	require.NoError(t, err)
	unlock()
}

func TestProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	virsh := filepath.Join(dir, "virsh")
	require.NoError(t, os.WriteFile(virsh, []byte("#!/bin/sh\necho \"$@\"; env >&2; cat; exit 3\n"), 0o700))
	p := newProgram(Settings{Virsh: virsh, URI: "test:///default", Env: []string{"PATH=/usr/bin:/bin", "VAULT_TOKEN=secret", "XDG_RUNTIME_DIR=/run/x"}})
	r, err := p.Run(t.Context(), []string{"define", "/dev/stdin"}, []byte("input"))
	require.NoError(t, err)
	require.Equal(t, 3, r.Exit)
	require.Equal(t, "-q -c test:///default define /dev/stdin\ninput", string(r.Stdout))
	require.Contains(t, string(r.Stderr), "LC_ALL=C")
	require.Contains(t, string(r.Stderr), "XDG_RUNTIME_DIR=/run/x")
	require.NotContains(t, string(r.Stderr), "secret")

	l := limited{max: 4}
	for range 3 {
		n, err := l.Write([]byte("abc"))
		require.NoError(t, err)
		require.Equal(t, 3, n)
	}
	require.Equal(t, "abca", string(l.text))
}
