package install

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/systemdtest"
)

// journalHas waits until the journal of a unit has a line since the mark that matches a pattern of
// grep -E.
func journalHas(t *testing.T, m *systemdtest.Guest, unit, since, pattern string) {
	t.Helper()
	script := "journalctl --no-pager -o cat -u " + unit + " --after-cursor=\"" + since + "\""
	require.Eventually(t, func() bool {
		_, err := m.Run(t.Context(), script+" | grep -qE '"+pattern+"'")
		return err == nil
	}, 5*time.Minute, 200*time.Millisecond, "%s: the journal has no line %s", unit, pattern)
}

// cursor is the position of the newest line of the journal.
func cursor(m *systemdtest.Guest) string {
	return m.Do("journalctl --no-pager -n 0 --show-cursor | sed -n 's/^-- cursor: //p'")
}

// faultySettings starts the API with faulty settings. Each time, the journal has the reason and the
// next step.
func faultySettings(t *testing.T, m *systemdtest.Guest) {
	t.Helper()
	const dir = "/etc/gpuaas/api"
	for name, c := range map[string]struct{ plant, repair, journal, check string }{
		"no environment file": {
			plant: "mv /etc/gpuaas/api.env /root/api.env", repair: "mv /root/api.env /etc/gpuaas/api.env",
			journal: `ConditionPathExists=/etc/gpuaas/api.env`,
		},
		"environment file without a setting": {
			plant: "sed -i.old /^VAULT_ADDR/d /etc/gpuaas/api.env", repair: "mv /etc/gpuaas/api.env.old /etc/gpuaas/api.env",
			journal: "VAULT_ADDR is not set",
		},
		"secret that the API cannot read": {
			plant: "chmod 0600 " + dir + "/node-database-url", repair: "chmod 0640 " + dir + "/node-database-url",
			journal: "GPUAAS_NODE_DATABASE_URL_FILE.*permission denied|permission denied.*node-database-url",
		},
		"wrong password of the database": {
			plant:   "cp -p " + dir + "/admin-database-url /root/url; sed -i 's/:[0-9a-f]*@/:wrong@/' " + dir + "/admin-database-url",
			repair:  "cp -p /root/url " + dir + "/admin-database-url; rm /root/url",
			journal: "rejects the role or its password",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m.Do("systemctl stop gpuaas-api")
			since := cursor(m)
			m.Do(c.plant + "\nsystemctl start --no-block gpuaas-api")
			journalHas(t, m, "gpuaas-api", since, c.journal)
			t.Log(m.Do("journalctl --no-pager -o cat -u gpuaas-api --after-cursor=\"" + since + "\" | head -n 20"))
			m.Do("systemctl stop gpuaas-api\n" + c.repair + "\nsystemctl reset-failed gpuaas-api || true\nsystemctl start gpuaas-api")
		})
	}
	t.Run("check names a wrong password", func(t *testing.T) {
		m.Do("sed 's/:[0-9a-f]*@/:wrong@/' /etc/gpuaas/setup/url-owner > /root/url")
		out, err := m.Run(t.Context(), ". /run/shell; export GPUAAS_DATABASE_URL_FILE=/root/url; gpuaas admin check")
		m.Do("rm /root/url")
		require.Error(t, err)
		require.Contains(t, out, "database")
		require.Contains(t, out, "password")
		t.Log(out)
	})
}

// wrongCA replaces the CA of the node API on the node. The agent's log and doctor name the reason.
func wrongCA(t *testing.T, m *systemdtest.Guest) {
	t.Helper()
	const agent = "/opt/gpuaas/node-agent/bin/gpuaas-node-agent"
	since := cursor(m)
	m.Do(`systemctl stop gpuaas-node-agent
cp -p /etc/gpuaas/ca-bundle.crt /root/ca-bundle.crt
cat /etc/gpuaas/node-cert-ca-bundle.crt > /etc/gpuaas/ca-bundle.crt
systemctl start gpuaas-node-agent`)
	journalHas(t, m, "gpuaas-node-agent", since, "the server is not the one of GPUAAS_CA_BUNDLE_PATH")
	out, err := m.Run(t.Context(), agent+" doctor")
	require.Error(t, err)
	require.Contains(t, out, "GPUAAS_CA_BUNDLE_PATH")
	t.Log(out)
	m.Do(`systemctl stop gpuaas-node-agent
cat /root/ca-bundle.crt > /etc/gpuaas/ca-bundle.crt
rm /root/ca-bundle.crt
systemctl start gpuaas-node-agent`)
	require.Eventually(t, func() bool {
		_, err := m.Run(t.Context(), agent+" doctor")
		return err == nil
	}, 5*time.Minute, time.Second, "the agent works again")
}
