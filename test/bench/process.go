package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ticksPerSecond is the unit of times in /proc on all current Linux systems.
const ticksPerSecond = 100

// family returns the processes of a part: itself and its descendants, except others,
// which are separate parts, and their descendants.
func family(root int, others ...int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc") // without /proc there are no children
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statOf(pid); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		for _, pid := range children[all[i]] {
			if !slices.Contains(others, pid) {
				all = append(all, pid)
			}
		}
	}
	return all
}

// statOf returns the fields of /proc/PID/stat from the state onward.
func statOf(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
}

// cpuSeconds returns the CPU time of a part since its start, including reaped children
// and excluding other parts.
func cpuSeconds(root int, others ...int) float64 {
	var ticks float64
	for _, pid := range family(root, others...) {
		f := statOf(pid)
		for i := 11; i <= 14 && i < len(f); i++ { // own and children's, user and system
			n, _ := strconv.ParseFloat(f[i], 64)
			ticks += n
		}
	}
	return ticks / ticksPerSecond
}

// memory is the memory of a part in bytes. Shared pages count in Resident for each
// process, in Proportional once, and in Private not at all.
type memory struct{ Resident, Proportional, Private float64 }

func memoryOf(root int) (memory, error) {
	var m memory
	for _, pid := range family(root) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			if pid == root {
				return m, err
			}
			continue // it exited meanwhile
		}
		for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
			name, rest, _ := strings.Cut(lines.Text(), ":")
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			switch name {
			case "Rss":
				m.Resident += kib * 1024
			case "Pss":
				m.Proportional += kib * 1024
			case "Private_Clean", "Private_Dirty":
				m.Private += kib * 1024
			}
		}
	}
	return m, nil
}

// meter measures the CPU time of several parts.
type meter map[string]struct {
	pid   int
	start float64
}

func startMeter(parts map[string]int) meter {
	m := meter{}
	for name, pid := range parts {
		m[name] = struct {
			pid   int
			start float64
		}{pid: pid}
	}
	for name, p := range m {
		p.start = m.seconds(name)
		m[name] = p
	}
	return m
}

// seconds returns the CPU time of a part since its start. A part that was started by
// another part counts only as itself.
func (m meter) seconds(name string) float64 {
	var others []int
	for _, p := range m {
		if p.pid != m[name].pid {
			others = append(others, p.pid)
		}
	}
	return cpuSeconds(m[name].pid, others...)
}

// used returns the CPU seconds of each part since the start of the meter.
func (m meter) used() map[string]float64 {
	out := map[string]float64{}
	for name, p := range m {
		out[name] = m.seconds(name) - p.start
	}
	return out
}

func total(used map[string]float64) (sum float64) {
	for _, v := range used {
		sum += v
	}
	return sum
}
