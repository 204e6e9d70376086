package maastest

import (
	"cmp"
	"maps"
	"slices"
)

// Admin is the double as an administrator of MAAS sees it.
type Admin struct{ server *Server }

// Status returns the name of a machine's status.
func (a Admin) Status(id string) string {
	return look(a.server, id, func(m *state) string { return names(m.status) })
}

// Power returns the power of a machine.
func (a Admin) Power(id string) string {
	return look(a.server, id, func(m *state) string { return m.power })
}

// Agent returns the agent name of a machine.
func (a Admin) Agent(id string) string {
	return look(a.server, id, func(m *state) string { return m.agent })
}

// UserData returns the user data of a deployed machine.
func (a Admin) UserData(id string) string {
	return look(a.server, id, func(m *state) string { return string(m.userData) })
}

// Annotations returns the workload annotations of a machine.
func (a Admin) Annotations(id string) map[string]string {
	return look(a.server, id, func(m *state) map[string]string { return maps.Clone(m.annotations) })
}

func look[T any](s *Server, id string, f func(*state) T) (v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
	if m := s.machine(id); m != nil {
		return f(m)
	}
	return v
}

// losePower is the end of a machine that switched itself off.
func (a Admin) losePower(id string) {
	look(a.server, id, func(m *state) bool { a.server.setPower(m, "off"); return true })
}

// Explain sets the status message of a machine.
func (a Admin) Explain(id, message string) {
	look(a.server, id, func(m *state) bool { m.message = message; return true })
}

// Erased returns the erase parameters of the last release of a machine.
func (a Admin) Erased(id string) map[string]string {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.releases[id])
}

// Used returns the IDs of the machines that are not ready.
func (a Admin) Used() (ids []string) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
	for _, m := range s.machines {
		if m.status != ready {
			ids = append(ids, m.SystemID)
		}
	}
	return ids
}

// Leftovers lists what a released machine still has of its instance.
func (a Admin) Leftovers() (found []string) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
	for _, m := range s.machines {
		if m.status == ready && (m.owner != "" || m.agent != "" || m.power != "off" || len(m.annotations)+len(m.userData) > 0) {
			found = append(found, m.SystemID)
		}
	}
	return found
}

// Requests returns the operations since the start, or since the last call of Forget.
func (a Admin) Requests() []string {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget clears the list of operations.
func (a Admin) Forget() {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// Occupy gives a ready machine to an owner, deployed and with power, and returns its ID. An empty
// owner is the account itself; the host name and the annotations may be empty.
func (a Admin) Occupy(owner, host string, annotations map[string]string) (id string) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if m.status == ready {
			m.status, m.owner, m.Hostname, m.power = deployed, cmp.Or(owner, user), cmp.Or(host, m.Hostname), "on"
			if m.annotations = maps.Clone(annotations); annotations == nil {
				m.annotations = map[string]string{}
			}
			return m.SystemID
		}
	}
	return ""
}

// Allocate allocates a ready machine, as a request that arrives late does, and returns its ID.
func (a Admin) Allocate(agent string) (id string) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.machines {
		if m.status == ready {
			s.request(m, "User acquiring node", agent)
			m.status, m.owner, m.agent = allocated, user, agent
			return m.SystemID
		}
	}
	return ""
}

// Change applies a change to a machine, as an administrator makes it.
func (a Admin) Change(id string, c Change) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machine(id)
	if m == nil {
		return
	}
	m.generation++
	switch c {
	case SwitchOff:
		s.setPower(m, "off")
	case Release:
		s.setPower(m, "off")
		s.free(m)
	case Remove:
		s.setPower(m, "off")
		s.machines = slices.DeleteFunc(s.machines, func(x *state) bool { return x == m })
	case FailDeployment:
		m.status, m.message = failedDeployment, "Installation failed: curtin: exit status 3"
	case MarkBroken: // Node.mark_broken releases the machine and keeps its owner
		s.setPower(m, "off")
		m.status, m.agent, m.message = broken, "", "Marked broken by an administrator"
	case ForgetNotes:
		m.annotations = map[string]string{}
	}
}

// Change is a change of a machine that the adapter did not ask for.
type Change string

// The changes.
const (
	SwitchOff      Change = "switch_off"
	Release        Change = "release"
	Remove         Change = "remove"
	FailDeployment Change = "fail_deployment"
	MarkBroken     Change = "mark_broken"
	ForgetNotes    Change = "forget_notes"
)
