package maas

import (
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
)

// node is a machine as MAAS describes it (DISPLAYED_MACHINE_FIELDS in
// src/maasserver/api/machines.py of canonical/maas). The agent name is not among the fields: it
// can only be filtered by.
type node struct {
	SystemID      string            `json:"system_id"`
	Hostname      string            `json:"hostname"`
	Owner         string            `json:"owner"`
	Status        int               `json:"status"`
	StatusName    string            `json:"status_name"`
	StatusMessage string            `json:"status_message"`
	Broken        string            `json:"error_description"`
	PowerState    string            `json:"power_state"`
	Ephemeral     bool              `json:"ephemeral_deploy"`
	Annotations   map[string]string `json:"workload_annotations"`
	// OwnerData is the name of the annotations before MAAS 3.1.
	OwnerData map[string]string `json:"owner_data"`
	Zone      struct {
		Name string `json:"name"`
	} `json:"zone"`
	// instance is set by the adapter; see owned.go.
	instance string
}

// note returns a workload annotation.
func (n node) note(key string) string {
	if v, ok := n.Annotations[key]; ok {
		return v
	}
	return n.OwnerData[key]
}

// systemID matches the IDs that MAAS makes, so that an ID cannot change the path of a request.
func systemID(id string) bool {
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-'
	}
	return id != "" && len(id) <= 64 && strings.IndexFunc(id, other) < 0
}

func (n node) check() error {
	if !systemID(n.SystemID) {
		return errors.New("a machine has no valid system_id")
	}
	return nil
}

// one decodes a machine.
func one(n *node) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		if err := d.Decode(n); err != nil {
			return err
		}
		return n.check()
	}
}

// many decodes a list, element by element.
func many[T any](each func(T) error) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		if t, err := d.Token(); err != nil || t != json.Delim('[') {
			return errors.New("the response is not a list")
		}
		for d.More() {
			var v T
			if err := d.Decode(&v); err != nil {
				return err
			}
			if err := each(v); err != nil {
				return err
			}
		}
		_, err := d.Token() // the end of the list, missing in a truncated response
		return err
	}
}

// ignored accepts an empty response and every JSON value: the caller reads the machine later. A
// page of a proxy is an error.
func ignored(d *json.Decoder) error {
	var v json.RawMessage
	if err := d.Decode(&v); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// values returns a form or query of pairs, without those that have an empty value.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Add(pairs[i], pairs[i+1])
		}
	}
	return v
}
