package workload

import (
	"log/slog"
	"maps"
	"sync"
	"time"
)

// stopMarks are the containers that were asked to stop. A mark is durable before the
// container receives its signal.
type stopMarks struct {
	file stateFile
	log  *slog.Logger

	mu sync.Mutex
	// asked is when a container, by ID, was asked to stop. A change replaces the map.
	asked map[string]time.Time
}

func (m *stopMarks) load() error {
	m.asked = map[string]time.Time{}
	_, err := m.file.read(&m.asked)
	return err
}

// all returns the marks. The caller must not change them.
func (m *stopMarks) all() map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func (m *stopMarks) has(id string) bool {
	_, ok := m.all()[id]
	return ok
}

// add records that a container is about to be asked to stop, and reports whether this is the
// first time.
func (m *stopMarks) add(id string) (first bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.asked[id]; known {
		return false, nil
	}
	next := maps.Clone(m.asked)
	next[id] = time.Now().UTC()
	if err := m.file.write(next); err != nil {
		return false, err
	}
	m.asked = next
	return true, nil
}

// forget drops the marks of containers that do not run, so that a container that is started
// again can be stopped again. Only marks in before, which were made before the list of the
// running containers, are dropped.
func (m *stopMarks) forget(before map[string]time.Time, runs func(id string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(m.asked)
	maps.DeleteFunc(next, func(id string, at time.Time) bool { return before[id].Equal(at) && !runs(id) })
	if m.file.readOnly || len(next) == len(m.asked) {
		return
	}
	if err := m.file.write(next); err != nil {
		m.log.Warn("docker stop marks not stored", "err", err.Error())
	}
	m.asked = next
}

// clear removes all marks, so that the next drain asks the containers again.
func (m *stopMarks) clear() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asked) == 0 {
		return nil
	}
	if err := m.file.write(map[string]time.Time{}); err != nil {
		return err
	}
	m.asked = map[string]time.Time{}
	return nil
}
