package install

import (
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/test/testkit/systemdtest"
)

// state is what a machine has: a sorted list of files, users, groups, units and processes.
type state []string

// stateOf lists what a machine has. Left out are the folders that always change, and what the
// page says remains: the journal, the records of apt with their backups, and the data of the servers.
func stateOf(m *systemdtest.Guest) state {
	out := m.Do(`find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp -o -path /var/log \
	-o -path /var/cache -o -path /var/backups -o -path /var/lib/apt -o -path /var/lib/dpkg \
	-o -path '/var/lib/postgresql/*' -o -path '/var/lib/vault/*' -o -path '/var/lib/temporal/*' -o -path '/var/lib/systemd/*' \) -prune -o -printf 'file %p\n'
getent passwd | sed 's/^\([^:]*\).*/user \1/'
getent group | sed 's/^\([^:]*\).*/group \1/'
systemctl list-unit-files --no-legend --no-pager | sed 's/^\([^ ]*\).*/unit file \1/'
systemctl list-units --all --no-legend --no-pager --plain 'gpuaas*' | sed 's/^\([^ ]*\).*/unit \1/'
find /var/lib/systemd /var/lib/dpkg/info /tmp /var/tmp -name '*gpuaas*' -printf 'file %p\n'
ps -e -o comm= | sort -u | grep gpuaas | sed 's/^/process /' || true`)
	lines := strings.Split(out, "\n")
	slices.Sort(lines)
	return slices.Compact(lines)
}

// since returns what the machine has now and had not before.
func (s state) since(before state) (more []string) {
	for _, line := range s {
		if _, had := slices.BinarySearch(before, line); !had {
			more = append(more, line)
		}
	}
	return more
}
