package dev

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// bootID returns the kernel's ID of the current boot.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// startTime returns when a process started, in clock ticks since the boot; "" if
// there is no such process or it is a zombie.
func startTime(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the name, is in parentheses and may contain any character.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const state, start = 0, 19 // fields 3 and 22 of the line
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}
