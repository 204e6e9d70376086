package dev

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// bootID answers the kernel's name for this boot.
func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// startTime answers when a process started, in clock ticks since the boot; ""
// when there is none or it is a zombie.
func startTime(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the name, is in parentheses and may hold anything.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const state, start = 0, 19 // the third and the 22nd field of all
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return ""
	}
	return fields[start]
}
