package proc

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// BootID returns the kernel's ID of the current boot; "" on a system where start
// times are dates.
func BootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// StartTime returns when a process started, in clock ticks since the boot; "" if
// there is no such process or it is a zombie.
func StartTime(pid int) string {
	if fields := stat(strconv.Itoa(pid)); fields != nil {
		return fields[19] // field 22 of the line
	}
	return ""
}

// Session returns the processes of a session whose environment contains the
// variable mark.
func Session(id int, mark string) []int {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if fields := stat(d.Name()); len(fields) == 0 || fields[3] != strconv.Itoa(id) { // field 6 of the line
			continue
		}
		env, err := os.ReadFile("/proc/" + d.Name() + "/environ")
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat returns the fields of /proc/PID/stat, starting with the third, the state. It
// returns nil if there is no such process or it is a zombie.
func stat(pid string) []string {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	// The second field, the name, is in parentheses and may contain any character.
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return nil
	}
	return fields
}
