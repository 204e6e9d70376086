package recorder

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// A Record is a machine as the site stores it.
type Record struct {
	ID string
	// Owner is the owner tag, empty for a machine that another party created.
	Owner  string
	Host   string
	Region string
	Type   string
	Phase  machine.Phase
	// Detail and Console are untrusted.
	Detail    string
	Console   []byte
	CreatedAt time.Time
}

// A Site keeps machines in memory, as a cloud does. It is the provider behind Provider, and behind
// the doubles of other adapters. Its methods may be called at once. The zero value has no
// machines.
type Site struct {
	mu       sync.Mutex
	machines map[string]Record
	disks    map[string]string // by owner tag
	created  int
}

// Add stores a machine with a disk and returns it, in phase Creating. If the site has one with the
// same owner tag, Add returns that one.
func (s *Site) Add(r Record) Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if r.Owner != "" && m.Owner == r.Owner {
			return m
		}
	}
	if s.machines == nil {
		s.machines, s.disks = map[string]Record{}, map[string]string{}
	}
	s.created++
	r.ID = "m-" + strconv.Itoa(s.created)
	r.Phase, r.CreatedAt = machine.Creating, time.Now().UTC()
	s.machines[r.ID] = r
	if r.Owner != "" {
		s.disks[r.Owner] = "disk of " + r.ID
	}
	return r
}

// All returns the machines in the order of their creation.
func (s *Site) All() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Record
	for i := range s.created {
		if m, ok := s.machines["m-"+strconv.Itoa(i+1)]; ok {
			all = append(all, m)
		}
	}
	return all
}

// Get returns the machine with the ID.
func (s *Site) Get(id string) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[id]
	return m, ok
}

// Owned returns the machine with the owner tag.
func (s *Site) Owned(owner string) (Record, bool) {
	all := s.All()
	i := slices.IndexFunc(all, func(m Record) bool { return owner != "" && m.Owner == owner })
	if i < 0 {
		return Record{}, false
	}
	return all[i], true
}

// Change changes a machine, and reports whether the site has it.
func (s *Site) Change(id string, change func(r *Record)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[id]
	if ok {
		change(&m)
		s.machines[id] = m
	}
	return ok
}

// Advance lets time pass for a machine: one that is being created runs, and one that is being
// deleted ends.
func (s *Site) Advance(id string) {
	m, _ := s.Get(id)
	switch m.Phase {
	case machine.Creating:
		s.Change(id, func(r *Record) { r.Phase, r.Console = machine.Running, []byte("booting "+r.Host+"\n") })
	case machine.Deleting:
		s.Remove(id)
		s.RemoveDisk(m.Owner)
	}
}

// Remove deletes a machine at once and keeps its disk.
func (s *Site) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, id)
}

// RemoveDisk deletes the disk that was created with the owner's machine.
func (s *Site) RemoveDisk(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.disks, owner)
}

// Disks lists the disks.
func (s *Site) Disks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, d := range s.disks {
		all = append(all, d)
	}
	slices.Sort(all)
	return all
}
