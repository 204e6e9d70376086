package agent

import (
	"os"
	"strconv"
	"strings"
)

// processTable looks at the processes of the host through /proc.
type processTable struct{ boot string }

func newProcessTable() processTable { return processTable{boot: bootID("/")} }

func (t processTable) bootID() string { return t.boot }

// startTime returns when the process started, in clock ticks since boot, or ""
// when there is none or it is a zombie.
func (processTable) startTime(pid int) string {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The command name is in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest) // from field 3, the state
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19] // field 22
}
