// Package maastest is a double of a MAAS region controller: an HTTP server with the part of API
// 2.0 that the adapter uses, its authentication, its machine states with delays, and faults on
// demand. It was written from the public source of MAAS, github.com/canonical/maas at commit
// 9e51f33ce; comments name the file below src/maasserver where a behavior is not obvious.
//
// Start at server.go; routes.go dispatches, and guests.go runs machines.
package maastest

import (
	"cmp"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a server.
type Options struct {
	// Delays are how long MAAS takes.
	Delays Delays
	// Now is the clock. With a nil Now the server uses the real one and calls Tick.
	Now func() time.Time
	// PowerOn is called when a machine gets power, with its user data once it is deployed, and
	// PowerOff when it loses it. Boot is called on the first boot of a deployed system, with the
	// user data, which cloud-init runs once. The calls of a server are sequential.
	PowerOn  func(m Machine, userData []byte)
	PowerOff func(m Machine)
	Boot     func(m Machine, userData []byte)
	// Guests, if set, are the machines. They replace the functions above.
	Guests *Guests
}

// Delays are the durations of MAAS's own work. Late is that of requests that arrive late.
type Delays struct {
	Power, Deploy, Erase, Late time.Duration
}

// Machine is the inventory of a machine. The zero values are those of a small machine.
type Machine struct {
	SystemID, Hostname, Zone, Pool string
	Tags                           []string
	CPUs, MemoryMiB                int
	GPUs                           []string // product names
}

// Server is the double. Its account is an administrator, so that it sees and may change the
// machines of all users.
type Server struct {
	*httptest.Server
	// Key is the API key of the account.
	Key string

	Admin
	*region

	nonces   map[string]bool
	faults   []*fault
	requests []string // operations in the order of their arrival
	stop     chan struct{}
	running  sync.WaitGroup
	slow     atomic.Int32
}

// region is the state of MAAS. The lock guards it and the fields of the server.
type region struct {
	options  Options
	mu       sync.Mutex
	machines []*state
	events   []entry
	releases map[string]map[string]string
	hooks    chan func()
}

// user is the account's name.
const user = "gpuaas"

// state is a machine with what MAAS stores about it.
type state struct {
	Machine
	status      int
	message     string
	owner       string
	agent       string
	power       string
	series      string
	annotations map[string]string
	userData    []byte
	due         []step
	generation  int // grows when the steps of an earlier request are void
}

// step is a change that happens later.
type step struct {
	at         time.Time
	generation int
	do         func()
}

// entry is an event of the log of a machine.
type entry struct {
	id          int
	at          time.Time
	machine     string
	level       int
	kind, text  string
	accountName string
}

// New starts a server with machines. Close ends it.
func New(o Options, machines ...Machine) *Server {
	s := &Server{Key: "consumer-key-of-test:token-key-of-test:secret-part-of-test", nonces: map[string]bool{}, stop: make(chan struct{}),
		region: &region{options: o, releases: map[string]map[string]string{}, hooks: make(chan func(), 1024)}}
	s.Admin = Admin{s}
	if o.Guests != nil {
		o.Guests.attach(&s.options, s.losePower)
	}
	for _, m := range machines {
		s.Add(m)
	}
	s.Server = httptest.NewUnstartedServer(s)
	// A client repeats a read if a reused connection breaks, which would hide faults.
	s.Config.SetKeepAlivesEnabled(false)
	s.Start()
	s.running.Go(s.runHooks)
	if o.Now == nil {
		s.running.Go(s.runClock)
	}
	return s
}

// BaseURL is the address for MAAS_API_BASE_URL.
func (s *Server) BaseURL() string { return s.URL + "/MAAS" }

// Close ends the server and its goroutines.
func (s *Server) Close() {
	s.CloseClientConnections()
	close(s.stop)
	s.Server.Close()
	s.running.Wait()
	if s.options.Guests != nil {
		s.options.Guests.close()
	}
}

func (s *Server) runHooks() {
	for {
		select {
		case <-s.stop:
			return
		case f := <-s.hooks:
			f()
		}
	}
}

func (s *Server) runClock() {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.Tick()
		}
	}
}

func (s *region) now() time.Time {
	if s.options.Now != nil {
		return s.options.Now()
	}
	return time.Now()
}

// Tick applies what is due by the clock.
func (s *Server) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
}

func (s *region) tick() {
	for _, m := range s.machines {
		for {
			i := slices.IndexFunc(m.due, func(p step) bool { return !p.at.After(s.now()) })
			if i < 0 {
				break
			}
			p := m.due[i]
			m.due = slices.Delete(m.due, i, i+1)
			if p.generation == m.generation {
				p.do()
			}
		}
	}
}

// after runs do when d has passed, unless a later request makes it void.
func (s *region) after(m *state, d time.Duration, do func()) {
	m.due = append(m.due, step{s.now().Add(d), m.generation, do})
}

// Add enlists and commissions a machine: it is ready.
func (s *Server) Add(m Machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := strconv.Itoa(len(s.machines) + 1)
	m.SystemID = cmp.Or(m.SystemID, "sys"+n)
	m.Hostname = cmp.Or(m.Hostname, "machine-"+n)
	m.Zone, m.Pool = cmp.Or(m.Zone, "default"), cmp.Or(m.Pool, "default")
	m.CPUs, m.MemoryMiB = cmp.Or(m.CPUs, 4), cmp.Or(m.MemoryMiB, 8192)
	s.machines = append(s.machines, &state{Machine: m, status: ready, power: "off", annotations: map[string]string{}})
}

// log appends an event. Its level is that of Python's logging module.
func (s *region) log(m *state, level int, kind, text string) {
	s.events = append(s.events, entry{len(s.events) + 1, s.now(), m.SystemID, level, kind, text, user})
}

func (s *region) machine(id string) *state {
	for _, m := range s.machines {
		if m.SystemID == id {
			return m
		}
	}
	return nil
}
