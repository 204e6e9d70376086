package faults_test

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing/fstest"

	"github.com/gpuaas/gpuaas/agent"
)

// disk is a node's disk in memory. A crash may lose unsynced data: the end of the
// last write of each file, and the last changes of each folder since its last sync.
type disk struct {
	root    string // what is below it is on this disk
	mu      sync.Mutex
	names   map[string]*file // what a program sees
	durable map[string]*file // what a crash leaves
	pending map[string][]func(map[string]*file)
	r       *rand.Rand

	full, readOnly bool
	crashAt        int // operations until a crash; 0 for none
	tearAt         int // operations until a torn write; 0 for none
	hit            []kind
}

// file is the content of a name.
type file struct {
	data   []byte
	synced []byte
}

// crashed is the panic value of an operation when the machine stops.
type crashed struct{}

func newDisk(root string, r *rand.Rand) *disk {
	return &disk{root: root, names: map[string]*file{}, durable: map[string]*file{}, pending: map[string][]func(map[string]*file){}, r: r}
}

// clone copies the disk for another machine.
func (d *disk) clone(root string, r *rand.Rand) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newDisk(root, r)
	for name, f := range d.names {
		g := &file{data: slices.Clone(f.data), synced: slices.Clone(f.data)}
		name = root + strings.TrimPrefix(name, d.root)
		c.names[name], c.durable[name] = g, g
	}
	return c
}

// change starts every modifying operation and injects failures and crashes. The
// caller holds the lock.
func (d *disk) change(needsSpace bool) error {
	if d.crashAt > 0 {
		if d.crashAt--; d.crashAt == 0 {
			d.hit = append(d.hit, kindAgentCrash)
			panic(crashed{})
		}
	}
	switch {
	case d.readOnly:
		return syscall.EROFS
	case d.full && needsSpace:
		return syscall.ENOSPC
	}
	return nil
}

// crash drops a random part of the unsynced data.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range slices.Sorted(maps.Keys(d.pending)) {
		ops := d.pending[dir]
		for _, op := range ops[:d.r.IntN(len(ops)+1)] {
			op(d.durable)
		}
	}
	clear(d.pending)
	d.names = map[string]*file{}
	for _, name := range slices.Sorted(maps.Keys(d.durable)) {
		f := d.durable[name]
		if n := len(f.data) - len(f.synced); n > 0 {
			f.data = f.data[:len(f.synced)+d.r.IntN(n+1)]
		} else {
			f.data = slices.Clone(f.synced)
		}
		f.synced = f.data
		d.names[name] = f
	}
	d.crashAt, d.tearAt = 0, 0
}

// repair ends all faults of the disk.
func (d *disk) repair() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.readOnly, d.crashAt, d.tearAt = false, false, 0, 0
}

// happened returns the faults that took effect since the last call.
func (d *disk) happened() []kind {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.hit
	d.hit = nil
	return out
}

// fail sets whether the disk is full or read-only.
func (d *disk) fail(full, readOnly bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.readOnly = full, readOnly
}

// crashIn and tearIn arm a fault that happens once.
func (d *disk) crashIn(ops int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.crashAt = ops
}

func (d *disk) tearIn(ops int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tearAt = ops
}

// renamed changes names now and queues the same change for the folder's sync.
func (d *disk) renamed(path string, op func(map[string]*file)) {
	op(d.names)
	dir := filepath.Dir(path)
	d.pending[dir] = append(d.pending[dir], op)
}

func missing(op, path string) error { return &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist} }

func failed(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

// ReadFile implements agent.FS. Paths outside root are read from the real disk.
func (d *disk) ReadFile(path string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.names[path]; ok {
		return slices.Clone(f.data), nil
	}
	if strings.HasPrefix(path, d.root) {
		return nil, missing("open", path)
	}
	return os.ReadFile(path)
}

// ReadDir implements agent.FS.
func (d *disk) ReadDir(path string) ([]fs.DirEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := fstest.MapFS{}
	for name, f := range d.names {
		all[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: f.data, Mode: f.mode()}
	}
	return all.ReadDir(strings.TrimPrefix(path, "/"))
}

// mode distinguishes folders, which have no data, from files.
func (f *file) mode() fs.FileMode {
	if f.data == nil && f.synced == nil {
		return fs.ModeDir | 0o700
	}
	return 0o600
}

// MkdirAll implements agent.FS.
func (d *disk) MkdirAll(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.names[path]; ok {
		return nil
	}
	if err := d.change(true); err != nil {
		return failed("mkdir", path, err)
	}
	// The name of a new folder is durable immediately: the agent never creates
	// several whose order a crash could change.
	d.names[path], d.durable[path] = &file{}, &file{}
	return nil
}

// Create implements agent.FS.
func (d *disk) Create(path string) (agent.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change(true); err != nil {
		return nil, failed("open", path, err)
	}
	f := &file{data: []byte{}, synced: []byte{}}
	d.renamed(path, func(names map[string]*file) { names[path] = f })
	return &handle{disk: d, file: f, path: path}, nil
}

// Rename implements agent.FS.
func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[from] == nil {
		return missing("rename", from)
	}
	if err := d.change(false); err != nil {
		return failed("rename", from, err)
	}
	d.renamed(to, func(names map[string]*file) {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if name == from || strings.HasPrefix(name, from+"/") {
				names[to+strings.TrimPrefix(name, from)] = names[name]
				delete(names, name)
			}
		}
	})
	return nil
}

// Remove implements agent.FS.
func (d *disk) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[path] == nil {
		return missing("remove", path)
	}
	for name := range d.names {
		if strings.HasPrefix(name, path+"/") {
			return failed("remove", path, syscall.ENOTEMPTY)
		}
	}
	if err := d.change(false); err != nil {
		return failed("remove", path, err)
	}
	d.renamed(path, func(names map[string]*file) { delete(names, path) })
	return nil
}

// Wipe implements agent.FS.
func (d *disk) Wipe(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[path]
	if f == nil {
		return nil
	}
	if err := d.change(false); err != nil {
		return failed("wipe", path, err)
	}
	f.data = make([]byte, len(f.data))
	f.synced = f.data
	d.renamed(path, func(names map[string]*file) { delete(names, path) })
	return nil
}

// SyncDir implements agent.FS.
func (d *disk) SyncDir(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change(false); err != nil {
		return failed("sync", path, err)
	}
	for _, op := range d.pending[path] {
		op(d.durable)
	}
	delete(d.pending, path)
	return nil
}

// handle is an open file.
type handle struct {
	disk *disk
	file *file
	path string
}

func (h *handle) Write(p []byte) (int, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if err := h.disk.change(true); err != nil {
		return 0, failed("write", h.path, err)
	}
	if h.disk.tearAt > 0 {
		if h.disk.tearAt--; h.disk.tearAt == 0 {
			h.disk.hit = append(h.disk.hit, kindTornWrite)
			h.file.data = append(h.file.data, p[:len(p)/2]...)
			return len(p) / 2, failed("write", h.path, syscall.EIO)
		}
	}
	h.file.data = append(h.file.data, p...)
	return len(p), nil
}

func (h *handle) Sync() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if err := h.disk.change(true); err != nil {
		return failed("sync", h.path, err)
	}
	h.file.synced = slices.Clone(h.file.data)
	return nil
}

func (h *handle) Close() error { return nil }

// renameOld is `mv path path.stale && sync` of an operator.
func (d *disk) renameOld(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, names := range []map[string]*file{d.names, d.durable} {
		if f := names[path]; f != nil {
			names[path+".stale"] = f
			delete(names, path)
		}
	}
}
