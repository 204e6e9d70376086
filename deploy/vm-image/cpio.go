package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/gpuaas/gpuaas/deploy/vm-image/sparse"
)

// The types of files in a mode.
const (
	folder = 0o040000
	file   = 0o100000
	device = 0o020000
	link   = 0o120000
)

// item is a file of the initramfs.
type item struct {
	name         string
	mode         uint32
	data         []byte
	major, minor uint32 // of a device
}

// newInitramfs returns the archive.
func newInitramfs(i image, found map[string][]byte) ([]byte, error) {
	var items []item
	for _, dir := range []string{"dev", "etc", "etc/gpuaas", "lib", "lib/modules", "opt", "opt/gpuaas", "opt/gpuaas/node-agent", "opt/gpuaas/node-agent/bin",
		"proc", "run", "state", "sys", "tmp", "usr", "usr/share", "usr/share/gpuaas", "var", "var/lib", "var/lib/gpuaas"} {
		items = append(items, item{name: dir, mode: folder | 0o755})
	}
	items = append(items, item{name: "dev/console", mode: device | 0o600, major: 5, minor: 1})
	for _, program := range []struct{ name, path string }{{"init", i.first}, {"opt/gpuaas/node-agent/bin/gpuaas-node-agent", i.agent}} {
		data, err := os.ReadFile(program.path)
		if err != nil {
			return nil, err
		}
		items = append(items, item{name: program.name, mode: file | 0o755, data: data})
	}
	fs, err := fileSystem(i.state)
	if err != nil {
		return nil, err
	}
	items = append(items, item{name: "lib/state.fs", mode: file | 0o644, data: fs})
	for _, m := range modules() {
		if found[m] == nil {
			return nil, fmt.Errorf("the kernel package has no module %s", m)
		}
		items = append(items, item{name: "lib/modules/" + m, mode: file | 0o644, data: found[m]})
	}
	items = append(items, item{name: "lib/modules/order", mode: file | 0o644, data: []byte(strings.Join(modules(), "\n") + "\n")})
	if i.workload {
		items = append(items, item{name: "bin", mode: folder | 0o755}, item{name: "bin/sh", mode: link | 0o777, data: []byte("/init")},
			item{name: "usr/share/gpuaas/workloads", mode: folder | 0o755},
			item{name: "usr/share/gpuaas/workloads/training.json", mode: file | 0o644, data: []byte(`{"command":["/init","workload"]}` + "\n")})
	}
	return archive(items), nil
}

// fileSystem returns the file system of an image file in the form in which the initramfs has it.
func fileSystem(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return sparse.Pack(bufio.NewReader(f))
}

// archive returns the items as a cpio archive in the format newc, without times and owners.
func archive(items []item) []byte {
	var b bytes.Buffer
	for i, it := range items {
		links := 1
		if it.mode&^0o7777 == folder {
			links = 2
		}
		header(&b, i+1, links, it)
	}
	header(&b, 0, 1, item{name: "TRAILER!!!"})
	pad(&b, 512)
	return b.Bytes()
}

func header(b *bytes.Buffer, inode, links int, it item) {
	fmt.Fprintf(b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, it.mode, 0, 0, links, 0, len(it.data), 0, 0, it.major, it.minor, len(it.name)+1, 0, it.name)
	pad(b, 4)
	b.Write(it.data)
	pad(b, 4)
}

func pad(b *bytes.Buffer, to int) {
	for b.Len()%to != 0 {
		b.WriteByte(0)
	}
}
