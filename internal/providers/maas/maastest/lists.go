package maastest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The statuses (NodeStatus of src/maascommon/enums/node.py) that a machine of the double can have.
const (
	ready            = 4
	deployed         = 6
	broken           = 8
	deploying        = 9
	allocated        = 10
	failedDeployment = 11
	releasing        = 12
	failedReleasing  = 13
	erasing          = 14
	failedErasing    = 15
)

// names returns the names of statuses as descriptions show them (NODE_STATUS_CHOICES). A filter
// has them in lower case with underscores.
func names(status int) string {
	return map[int]string{ready: "Ready", deployed: "Deployed", broken: "Broken", deploying: "Deploying", allocated: "Allocated",
		failedDeployment: "Failed deployment", releasing: "Releasing", failedReleasing: "Releasing failed",
		erasing: "Disk erasing", failedErasing: "Failed disk erasing"}[status]
}

func label(status int) string {
	if status == failedReleasing {
		return "failed_releasing"
	}
	return strings.ReplaceAll(strings.ToLower(names(status)), " ", "_")
}

// list returns the machines that match the filters of ReadNodesForm (node_constraint_filter_forms.py):
// each parameter may be repeated and matches any of its values, except tags, which match all.
func (s *region) list(r *http.Request) reply {
	for _, status := range r.Form["status"] {
		if !slices.ContainsFunc([]int{0, 1, 2, 3, 5, 7, ready, deployed, broken, deploying, allocated, failedDeployment, releasing,
			failedReleasing, erasing, failedErasing}, func(known int) bool { return label(known) == status }) {
			return invalid("status", fmt.Sprintf("Select a valid choice. %s is not one of the available choices.", status))
		}
	}
	if problem := s.unknown(r.Form); problem != nil {
		return *problem
	}
	out := []map[string]any{}
	for _, m := range s.machines {
		if s.matches(m, r.Form) {
			out = append(out, s.describe(m))
		}
	}
	return object(out)
}

// unknown rejects tags and zones that no machine has, as FilterNodeForm does.
func (s *region) unknown(form url.Values) *reply {
	has := func(field, value string) bool {
		return slices.ContainsFunc(s.machines, func(m *state) bool {
			return field == "tags" && slices.Contains(m.Tags, value) || field == "zone" && m.Zone == value || field == "pool" && m.Pool == value
		})
	}
	for _, field := range []string{"tags", "zone", "pool"} {
		for _, value := range form[field] {
			if !has(field, value) {
				a := invalid(field, fmt.Sprintf("No such %s: '%s'.", strings.TrimSuffix(field, "s"), value))
				return &a
			}
		}
	}
	return nil
}

func (s *region) matches(m *state, form url.Values) bool {
	anyOf := func(field, value string) bool { return len(form[field]) == 0 || slices.Contains(form[field], value) }
	atLeast := func(field string, value int) bool {
		want, err := strconv.ParseFloat(form.Get(field), 64)
		return err != nil || float64(value) >= want
	}
	for _, tag := range form["tags"] {
		if !slices.Contains(m.Tags, tag) {
			return false
		}
	}
	return anyOf("agent_name", m.agent) && anyOf("owner", m.owner) && anyOf("status", label(m.status)) && anyOf("zone", m.Zone) &&
		anyOf("pool", m.Pool) && anyOf("system_id", m.SystemID) && anyOf("id", m.SystemID) && anyOf("hostname", m.Hostname) &&
		anyOf("name", m.Hostname) && atLeast("cpu_count", m.CPUs) && atLeast("mem", m.MemoryMiB)
}

// describe returns some of DISPLAYED_MACHINE_FIELDS (api/machines.py): the agent name is not one.
func (s *region) describe(m *state) map[string]any {
	var owner any
	if m.owner != "" {
		owner = m.owner
	}
	message := m.message
	for _, e := range s.events {
		if e.machine == m.SystemID && e.level >= info && message == "" {
			message = e.kind
		}
	}
	return map[string]any{
		"system_id": m.SystemID, "hostname": m.Hostname, "fqdn": m.Hostname + ".maas", "owner": owner, "status": m.status,
		"status_name": names(m.status), "status_message": message, "status_action": "", "error_description": "",
		"power_state": m.power, "power_type": "ipmi", "architecture": "amd64/generic", "cpu_count": m.CPUs, "memory": m.MemoryMiB,
		"osystem": "ubuntu", "distro_series": m.series, "tag_names": m.Tags, "node_type": 0, "node_type_name": "Machine", "locked": false,
		"zone": map[string]any{"id": 1, "name": m.Zone, "description": ""}, "pool": map[string]any{"id": 0, "name": m.Pool, "description": ""},
		"owner_data": m.annotations, "workload_annotations": m.annotations, "hardware_info": map[string]string{"cpu_model": "Test CPU", "system_vendor": "Unknown"},
		"physicalblockdevice_set": []any{map[string]any{"id": 1, "name": "sda", "size": 512110190592, "model": "Test SSD"}},
		"interface_set": []any{map[string]any{"id": 1, "name": "eth0", "mac_address": "52:54:00:00:00:01", "link_connected": true,
			"links": []any{map[string]any{"id": 1, "mode": "auto", "ip_address": "10.0.0.5"}, map[string]any{"id": 2, "mode": "link_up"}}}},
		"resource_uri": "/MAAS/api/2.0/machines/" + m.SystemID + "/",
	}
}

// devices returns the devices of a node (api/nodedevices.py).
func (s *region) devices(id string, r *http.Request) reply {
	m := s.machine(id)
	if m == nil {
		return plain(http.StatusNotFound, "No Node matches the given query.")
	}
	out := []map[string]any{}
	if kind := r.Form.Get("hardware_type"); kind == "" || kind == "gpu" {
		for i, name := range m.GPUs {
			out = append(out, map[string]any{"id": i + 1, "bus_name": "PCIE", "hardware_type": 5, "hardware_type_name": "GPU", "vendor_id": "10de",
				"vendor_name": "NVIDIA Corporation", "product_name": name, "commissioning_driver": "nouveau", "system_id": id})
		}
	}
	return object(out)
}

// The levels of events.
const (
	debug = 10
	info  = 20
)

// query returns events, newest first (api/events.py).
func (s *region) query(r *http.Request) reply {
	limit, err := strconv.Atoi(r.Form.Get("limit"))
	if err != nil {
		limit = 100
	}
	if limit > 1000 {
		return plain(http.StatusBadRequest, "Requested number of events %d is greater than limit: %d", limit, 1000)
	}
	least := info
	if r.Form.Get("level") == "DEBUG" {
		least = debug
	}
	events := []map[string]any{}
	for _, e := range slices.Backward(s.events) {
		if len(events) < limit && e.level >= least && (len(r.Form["id"]) == 0 || slices.Contains(r.Form["id"], e.machine)) {
			events = append(events, map[string]any{"username": e.accountName, "node": e.machine, "id": e.id, "type": e.kind, "description": e.text,
				"level": map[int]string{debug: "DEBUG", info: "INFO"}[e.level], "created": e.at.UTC().Format("Mon, 02 Jan. 2006 15:04:05")})
		}
	}
	return object(map[string]any{"count": len(events), "events": events, "next_uri": nil, "prev_uri": nil})
}
