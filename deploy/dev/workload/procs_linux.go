package workload

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// processTable looks at the processes of the host through /proc.
type processTable struct{ boot string }

func newProcessTable() processTable { return processTable{boot: bootID()} }

func (t processTable) bootID() string { return t.boot }

// startTime returns when the process started, in clock ticks since boot, or ""
// when there is none or it is a zombie.
func (processTable) startTime(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	fields := statFields(string(data))
	if fields == nil {
		return ""
	}
	return fields[19] // field 22
}

// statFields returns the fields of /proc/PID/stat from the third, the state, or
// nil when the process is no more.
func statFields(stat string) []string {
	// The command name before is in parentheses and may hold anything.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return nil
	}
	return fields
}

// session lists the processes of a session that carry mark in their
// environment.
func (processTable) session(id int, mark string) []int {
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
		data, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := statFields(string(data))
		if len(fields) == 0 || fields[3] != strconv.Itoa(id) { // field 6
			continue
		}
		env, err := os.ReadFile("/proc/" + d.Name() + "/environ")
		if err == nil && slices.Contains(strings.Split(string(env), "\x00"), mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}
