package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/need"
	"github.com/gpuaas/gpuaas/test/testkit/systemdtest"
)

// blockTime bounds one block of commands.
const blockTime = 10 * time.Minute

// The addresses and names of the machines in the page.
const (
	controlName = "gpuaas.example.com"
	controlIP   = "10.77.0.1"
	nodeName    = "gpu-01"
	nodeIP      = "10.77.0.2"
)

// The sections of the page at which the test does more than typing.
const (
	sectionPackages  = "Install the packages"
	sectionEnroll    = "Enroll the second host"
	sectionDrain     = "Drain, retire and remove it"
	sectionDelete    = "Delete the agent"
	sectionUninstall = "Uninstall"
)

// TestInstall types docs/install.md on two machines. Between its sections it makes mistakes that the
// programs must report, and after the last one nothing of gpuaas may be left.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	raw, err := os.ReadFile(pagePath)
	require.NoError(t, err)
	blocks, err := readPage(string(raw))
	require.NoError(t, err)

	site := systemdtest.NewSite(t, absolute(t, "../../.cache/install-root"))
	machines := map[string]*systemdtest.Guest{control: site.Boot(controlName, controlIP+"/24"), node: site.Boot(nodeName, nodeIP+"/24")}
	prepare(t, machines)

	before := map[string]state{}
	hooks := map[string]func(){ // before the first block of a section
		sectionPackages: func() {
			// As an administrator does after the initialization of Vault.
			machines[control].Do(`(umask 077; jq --raw-output .root_token /var/lib/vault/keys.json > /root/root-token)`)
			for name, m := range machines {
				before[name] = stateOf(m)
			}
		},
		sectionEnroll: func() {
			t.Run("faulty settings", func(t *testing.T) { faultySettings(t, machines[control]) })
			t.Run("package installed again", func(t *testing.T) { installedAgain(t, machines[control]) })
		},
		sectionDrain:     func() { t.Run("wrong CA", func(t *testing.T) { wrongCA(t, machines[node]) }) },
		sectionDelete:    func() { removed(t, machines) },
		sectionUninstall: func() { rotated(machines[control]) },
	}
	section := ""
	for _, b := range blocks {
		if b.section != section {
			section = b.section
			if hook := hooks[section]; hook != nil {
				hook()
			}
		}
		if b.host == "" {
			continue
		}
		typeBlock(t, machines[b.host], b)
	}
	for name, m := range machines {
		assert.Empty(t, stateOf(m).since(before[name]), "what is left on the machine %s", name)
	}
	nothingInServers(t, machines[control])
}

// typeBlock runs a block in the shell of its machine: variables, functions and the working directory
// stay for the next block.
func typeBlock(t *testing.T, m *systemdtest.Guest, b block) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), blockTime)
	defer cancel()
	start := time.Now()
	out, err := m.Run(ctx, "[ ! -f /run/shell ] || . /run/shell\n"+b.text+"\n{ declare -f; export -p; printf 'cd %q\\n' \"$PWD\"; } > /run/shell\n")
	where := fmt.Sprintf("docs/install.md:%d (%s, %s)", b.line, b.section, m.Host)
	if err != nil {
		t.Log(m.Host + ":\n" + m.Do("journalctl --no-pager -o cat -n 60 -u 'gpuaas-*' || true"))
	}
	require.NoError(t, err, "%s:\n%s\n%s", where, b.text, out)
	t.Logf("%s: %s\n%s", where, time.Since(start).Round(10*time.Millisecond), strings.TrimSpace(out))
}

// prepare gives the machines what an administrator has before the first step: names, SSH, the
// packages of gpuaas, and the servers that the test machines cannot download.
func prepare(t *testing.T, machines map[string]*systemdtest.Guest) {
	t.Helper()
	for _, m := range machines {
		m.Do(fmt.Sprintf("printf '%%s\\n' '127.0.0.1 localhost' '%s %s' '%s %s' > /etc/hosts", controlIP, controlName, nodeIP, nodeName))
	}
	c, n := machines[control], machines[node]
	c.Do("mkdir -p -m 0700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")
	n.Do("mkdir -p -m 0700 .ssh; echo '" + c.Do("cat .ssh/id_ed25519.pub") + "' > .ssh/authorized_keys")
	// All keys of the host, so that ssh has nothing to add to the file.
	c.Do("echo '" + n.Do("sed 's/^/"+nodeName+" /' /etc/ssh/ssh_host_*_key.pub") + "' > .ssh/known_hosts")
	for _, name := range []string{"gpuaas", "gpuaas-api", "gpuaas-worker"} {
		found, err := filepath.Glob(absolute(t, "../../dist/"+name+"_*_amd64.deb"))
		require.NoError(t, err)
		need.That(t, len(found) == 1, "there are %d packages dist/%s_*_amd64.deb, not 1; run: ./task release:packages", len(found), name)
		c.Put(found[0], "/root/"+filepath.Base(found[0]), 0o644)
	}
	server(t, c, "vault", "gpuaas-dev-vault", "--data /var/lib/vault --keys /var/lib/vault/keys.json", 8200)
	server(t, c, "temporal", "gpuaas-dev-temporal", "--namespace default --db /var/lib/temporal/temporal.db", 7233)
}

// server runs one of the project's builds of a real server as a unit, with the name and the address of
// the page.
func server(t *testing.T, m *systemdtest.Guest, unit, program, flags string, port int) {
	t.Helper()
	binary := absolute(t, "../../bin/"+program)
	_, err := os.Stat(binary)
	need.That(t, err == nil, "there is no %s; run: ./task build", binary)
	m.Put(binary, "/usr/local/bin/"+unit+"-server", 0o755)
	m.Do(fmt.Sprintf(`cat > /etc/systemd/system/%[1]s.service <<'END'
[Service]
ExecStart=/usr/local/bin/%[1]s-server %[2]s
StateDirectory=%[1]s
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl enable --quiet --now %[1]s
timeout 180 bash -c 'until 2>/dev/null </dev/tcp/127.0.0.1/%[3]d; do sleep 0.2; done'`, unit, flags, port))
}

// installedAgain removes a package and installs it again: its program is enabled and runs with the
// configuration that the removal left. One that an administrator disabled stays disabled.
func installedAgain(t *testing.T, m *systemdtest.Guest) {
	t.Helper()
	const again = "apt-get remove --yes gpuaas-worker\napt-get install --yes /root/gpuaas-worker_*.deb\n"
	m.Do(again + "systemctl is-enabled gpuaas-worker; systemctl is-active gpuaas-worker")
	m.Do("systemctl disable --now gpuaas-worker\n" + again)
	for _, check := range []string{"is-enabled", "is-active"} {
		_, err := m.Run(t.Context(), "systemctl "+check+" gpuaas-worker")
		require.Error(t, err, "%s, although it was disabled", check)
	}
	m.Do("systemctl enable --now gpuaas-worker")
}

// removed checks that the drain stopped the workload, that the node is removed, and that its agent
// stops.
func removed(t *testing.T, machines map[string]*systemdtest.Guest) {
	t.Helper()
	require.Contains(t, machines[control].Do("gpuaas node show "+nodeName+" --output json"), `"removed"`)
	n := machines[node]
	require.Equal(t, "inactive", n.Do("systemctl show --property=ActiveState --value training"))
	require.Eventually(t, func() bool {
		_, err := n.Run(t.Context(), "systemctl is-active gpuaas-node-agent")
		return err != nil
	}, 5*time.Minute, time.Second, "the agent stops")
	t.Log(n.Do("journalctl --no-pager -o cat -n 8 -u gpuaas-node-agent; ls /etc/gpuaas"))
}

// rotated checks that the programs log in to Vault with the new secret IDs.
func rotated(m *systemdtest.Guest) {
	m.Do(`systemctl restart gpuaas-worker gpuaas-api
for port in 9090 9091; do
	timeout 180 bash -c "until curl -fsS http://127.0.0.1:$port/readyz | jq --exit-status '.status == \"ok\" and .degraded == null'; do sleep 1; done"
done`)
}

// nothingInServers checks that Vault and Postgres have nothing of gpuaas. Vault reports an empty list
// of roles as an error.
func nothingInServers(t *testing.T, m *systemdtest.Guest) {
	t.Helper()
	require.Empty(t, m.Do(`cd /; runuser -u postgres -- psql -At -c "SELECT datname FROM pg_database WHERE datname LIKE '%gpuaas%'
UNION SELECT rolname FROM pg_roles WHERE rolname LIKE '%gpuaas%'"`))
	for _, path := range []string{"sys/mounts", "sys/policies/acl?list=true", "auth/approle/role?list=true"} {
		out := m.Do(`curl -sS --header @<(echo "X-Vault-Token: $(cat /root/root-token)") 'http://127.0.0.1:8200/v1/` + path + `'`)
		for _, name := range []string{"gpuaas", "pki-node", "pki-api", "transit", "kv-providers", "permission denied"} {
			require.NotContains(t, out, name, path)
		}
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(path)
	require.NoError(t, err)
	return full
}
