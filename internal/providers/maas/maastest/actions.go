package maastest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
)

// request logs what a user asked for (Node._register_request_event of models/node.py).
func (s *region) request(m *state, kind, comment string) {
	text := "(" + user + ")"
	if comment != "" {
		text += " - " + comment
	}
	s.log(m, debug, kind, text)
}

// allocate acquires the first machine that matches (MachinesHandler.allocate of api/machines.py).
func (s *region) allocate(r *http.Request) reply {
	if problem := s.unknown(r.PostForm); problem != nil {
		return *problem
	}
	form := maps.Clone(r.PostForm)
	agent := form.Get("agent_name")
	delete(form, "agent_name") // not a constraint
	for _, m := range s.machines {
		if m.status != ready || !s.matches(m, form) {
			continue
		}
		if r.PostForm.Get("dry_run") != "true" {
			s.request(m, "User acquiring node", r.PostForm.Get("comment"))
			m.status, m.owner, m.agent = allocated, user, agent
		}
		return object(s.describe(m))
	}
	if id := form.Get("system_id"); id != "" {
		return plain(http.StatusConflict, "No machine with system ID %s available.", id)
	}
	return plain(http.StatusConflict, "No available machine matches constraints: %v (resolved to \"\")", r.PostForm)
}

// annotate sets the workload annotations. MAAS responds with the machine, whatever its
// documentation says (WorkloadAnnotationsMixin of api/nodes.py).
func (s *region) annotate(m *state, r *http.Request) reply {
	if m.owner != user {
		return plain(http.StatusConflict, "Cannot set workload annotation: it hasn't been acquired.")
	}
	for key, v := range r.PostForm {
		switch {
		case key == "op":
		case v[0] == "":
			delete(m.annotations, key)
		case !regexp.MustCompile(`^[\w.-]+$`).MatchString(key):
			return plain(http.StatusInternalServerError, "Invalid character in key name")
		default:
			m.annotations[key] = v[0]
		}
	}
	return object(s.describe(m))
}

// deploy starts a deployment. It allocates a ready machine first (MachineHandler.deploy).
func (s *region) deploy(m *state, r *http.Request) reply {
	if m.status == ready {
		s.request(m, "User acquiring node", r.PostForm.Get("comment"))
		m.status, m.owner, m.agent = allocated, user, r.PostForm.Get("agent_name")
	}
	if m.owner != user {
		return plain(http.StatusForbidden, "")
	}
	if m.status != allocated {
		return plain(http.StatusConflict, "Can't deploy a machine that is in the '%s' state", names(m.status))
	}
	if series := r.PostForm.Get("distro_series"); series == "ubuntu/unknown" {
		return invalid("distro_series", fmt.Sprintf("'%s' is not a valid distro_series.", series))
	}
	return s.start(m, r)
}

// start switches a machine on. With status Allocated that is its deployment (Node.start).
func (s *region) start(m *state, r *http.Request) reply {
	if m.status == allocated {
		s.request(m, "User starting deployment", r.PostForm.Get("comment"))
		m.status, m.series, m.message = deploying, r.PostForm.Get("distro_series"), ""
		s.log(m, info, "Deploying", "")
		data, err := base64.StdEncoding.DecodeString(r.PostForm.Get("user_data"))
		m.userData = data
		s.after(m, s.options.Delays.Power+s.options.Delays.Deploy, func() {
			if err != nil {
				m.status, m.message = failedDeployment, "cloud-init cannot read the user data"
				return
			}
			m.status = deployed
			s.log(m, info, "Deployed", "")
			if machine := m.Machine; s.options.Boot != nil {
				s.hooks <- func() { s.options.Boot(machine, data) }
			}
		})
	} else {
		s.request(m, "User powering up node", r.PostForm.Get("comment"))
	}
	s.after(m, s.options.Delays.Power, func() { s.setPower(m, "on") })
	return object(s.describe(m))
}

// setPower changes the power and calls the hook.
func (s *region) setPower(m *state, power string) {
	if m.power == power {
		return
	}
	m.power = power
	machine, data := m.Machine, slices.Clone(m.userData)
	s.log(m, info, "Node powered "+power, "")
	switch {
	case power == "on" && s.options.PowerOn != nil:
		s.hooks <- func() { s.options.PowerOn(machine, data) }
	case power == "off" && s.options.PowerOff != nil:
		s.hooks <- func() { s.options.PowerOff(machine) }
	}
}

func (s *region) powerOn(m *state, r *http.Request) reply {
	if m.owner == "" {
		return plain(http.StatusConflict, "Can't start node: it hasn't been allocated.")
	}
	return s.start(m, r)
}

func (s *region) powerOff(m *state, r *http.Request) reply {
	s.request(m, "User powering down node", r.PostForm.Get("comment"))
	s.after(m, s.options.Delays.Power, func() { s.setPower(m, "off") })
	return object(s.describe(m))
}

// release erases the disks if one of three parameters is set, switches the machine off, and
// makes it ready once it is off. A repeated request succeeds (MachineHandler.release).
func (s *region) release(m *state, r *http.Request) reply {
	if m.status == releasing || m.status == ready {
		return object(s.describe(m))
	}
	if !slices.Contains([]int{allocated, broken, deploying, deployed, failedDeployment, failedErasing, failedReleasing}, m.status) {
		return plain(http.StatusConflict, "Machine cannot be released in its current state ('%s').", names(m.status))
	}
	m.generation++ // stops the deployment
	options := map[string]string{}
	for _, name := range []string{"erase", "quick_erase", "secure_erase"} {
		if v := r.PostForm.Get(name); v != "" {
			options[name] = v
		}
	}
	s.releases[m.SystemID] = options
	if len(options) == 0 {
		s.request(m, "User releasing node", r.PostForm.Get("comment"))
		s.free(m)
		return object(s.describe(m))
	}
	s.request(m, "User erasing disk", r.PostForm.Get("comment"))
	m.status = erasing
	s.after(m, s.options.Delays.Erase, func() { s.free(m) })
	return object(s.describe(m))
}

// free is Node._release: it clears the agent name at once, and the owner and the annotations when
// the machine is off (Node._finalize_release).
func (s *region) free(m *state) {
	m.status, m.agent, m.series, m.message, m.userData = releasing, "", "", "", nil
	s.log(m, info, "Releasing", "")
	finalize := func() {
		s.setPower(m, "off")
		m.status, m.owner, m.annotations = ready, "", map[string]string{}
		s.log(m, info, "Released", "")
	}
	if m.power == "off" {
		finalize()
		return
	}
	s.after(m, s.options.Delays.Power, finalize)
}
