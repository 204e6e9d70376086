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

// ticksPerSecond is the unit of times in /proc, the same on every Linux of today.
const ticksPerSecond = 100

// family are the processes of a part: itself and what it started, but for others,
// which are parts of their own with what they started.
func family(root int, others ...int) []int {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc") // without it the part is alone
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

// statOf are the fields of /proc/PID/stat from the state on.
func statOf(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
}

// cpuSeconds is what a part has used since it started, with the children that
// it has seen end and without those that are other parts.
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

// memory is what a part holds, bytes. Resident counts what processes share in
// each of them, Proportional once, Private not at all.
type memory struct{ Resident, Proportional, Private float64 }

func memoryOf(root int) (memory, error) {
	var m memory
	for _, pid := range family(root) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			if pid == root {
				return m, err
			}
			continue // it ended meanwhile
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

// meter reads the CPU of several parts over a span.
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

// seconds answers what a part has used since it started. A part that another one
// started is counted once, as itself.
func (m meter) seconds(name string) float64 {
	var others []int
	for _, p := range m {
		if p.pid != m[name].pid {
			others = append(others, p.pid)
		}
	}
	return cpuSeconds(m[name].pid, others...)
}

// used answers what each part used since the start, seconds.
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
