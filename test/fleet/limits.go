package fleet

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpuaas/gpuaas/schema"
)

// filesPerAgent is the number of open files of one agent: its lock, its connection, and
// a second connection or a file being written.
const filesPerAgent = 3

// raiseFileLimit raises the soft limit of open files to the hard one. Its error names the
// limit to change if this machine cannot run so many agents.
func raiseFileLimit(size int) error {
	need := uint64(filesPerAgent*size + 128)
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("reading the limit of open files: %w", err)
	}
	if l.Cur < l.Max {
		raised := syscall.Rlimit{Cur: l.Max, Max: l.Max}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err == nil {
			l = raised
		}
	}
	if l.Cur < need {
		return schema.NewError(schema.KindInvalidRequest, "a fleet of %d needs %d open files, and the hard limit is %d", size, need, l.Max).
			WithReason("too_few_files").WithNext(fmt.Sprintf("ulimit -Hn %d as root, LimitNOFILE= of the unit, or a smaller fleet", need))
	}
	if ports, ok := localPorts(); ok && ports < size {
		return schema.NewError(schema.KindInvalidRequest, "a fleet of %d needs as many local ports, and this machine has %d", size, ports).
			WithReason("too_few_ports").WithNext("sysctl -w net.ipv4.ip_local_port_range='1024 65535', or a smaller fleet")
	}
	return nil
}

// localPorts returns how many connections one address can have to another; false if
// the system does not report it.
func localPorts() (int, bool) {
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, false
	}
	var low, high int
	if _, err := fmt.Sscan(string(raw), &low, &high); err != nil {
		return 0, false
	}
	return high - low + 1, true
}

// resident returns the resident memory of this process in bytes.
func resident() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(raw)); err == nil && len(fields) > 1 {
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}

// lock locks the fleet's state for this process until the returned file is closed.
func lock(c Config) (*os.File, error) {
	if err := os.MkdirAll(c.State, 0o700); err != nil {
		return nil, fmt.Errorf("creating the fleet's folder: %w", err)
	}
	f, err := os.OpenFile(string(c.folder("."+c.Prefix+".lock")), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		return nil, schema.NewError(schema.KindOperationInProgress, "another fleet %s runs in %s", c.Prefix, c.State).
			WithReason("fleet_runs").WithNext("stop it, or use a different --prefix")
	}
	return f, nil
}
