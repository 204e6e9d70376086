package maas

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// A machine has three marks of its instance, because none is readable in all states:
//
//   - the agent name, which allocate sets in the transaction that allocates. Lists can be
//     filtered by it, but it is not part of a machine's description, and MAAS clears it when a
//     release begins;
//   - two workload annotations, which a request after that sets. MAAS clears them when a
//     release has ended;
//   - the comment of allocate, which MAAS writes into the event of the allocation. It shows
//     the instance of a machine without annotations.
//
// See Node.acquire, Node._release and Node._finalize_release in src/maasserver/models/node.py
// of canonical/maas.

// The workload annotations.
const (
	noteInstallation = "gpuaas-owner"
	noteInstance     = "gpuaas-instance"
)

// account is the account of MAAS that the installation uses, with its machines.
type account struct {
	settings Settings
	client   *client
}

// tagPrefix starts the agent names of the installation.
func (a *account) tagPrefix() string { return "gpuaas/" + a.settings.Installation + "/" }

func (a *account) tag(instanceID string) string { return a.tagPrefix() + instanceID }

// find returns the machines of the instance. There is more than one only if two allocations ran
// at the same time.
func (a *account) find(ctx context.Context, instanceID string) ([]node, error) {
	found, err := a.tagged(ctx, instanceID)
	if err != nil || len(found) > 0 {
		return found, err
	}
	all, err := a.owned(ctx)
	for _, n := range all {
		if n.instance == instanceID {
			found = append(found, n)
		}
	}
	return found, err
}

// tagged returns the machines with the agent name of the instance: all of it, until their
// release begins. A machine with annotations of another owner is left out, in case that the
// server ignores the filter; so is a deployed one without annotations.
func (a *account) tagged(ctx context.Context, instanceID string) (found []node, err error) {
	err = a.list(ctx, values("agent_name", a.tag(instanceID)), "find the machine of instance "+instanceID, func(n node) {
		mine := n.note(noteInstallation) == a.settings.Installation && n.note(noteInstance) == instanceID
		bare := len(n.Annotations)+len(n.OwnerData) == 0 && n.phase() != machine.Running && n.phase() != machine.Stopped
		if !n.free() && (mine || bare) {
			n.instance = instanceID
			found = append(found, n)
		}
	})
	return found, err
}

// owned returns the machines of all instances of the installation, by their annotations or the
// event of their allocation.
func (a *account) owned(ctx context.Context) (found []node, err error) {
	owner, err := a.whoami(ctx)
	if err != nil {
		return nil, err
	}
	var bare []node
	err = a.list(ctx, values("owner", owner), "list the machines of the account", func(n node) {
		switch {
		case n.free() || n.Owner != owner:
		case n.note(noteInstallation) == a.settings.Installation && n.note(noteInstance) != "":
			n.instance = n.note(noteInstance)
			found = append(found, n)
		case len(n.Annotations)+len(n.OwnerData) == 0:
			bare = append(bare, n)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, n := range bare {
		_, tag, err := a.acquired(ctx, n)
		if err != nil {
			return nil, err
		}
		if id, ok := strings.CutPrefix(tag, a.tagPrefix()); ok && id != "" {
			n.instance = id
			found = append(found, n)
		}
	}
	return found, nil
}

func (a *account) list(ctx context.Context, query url.Values, what string, each func(node)) error {
	return a.client.call(ctx, request{what: what, path: "machines/", query: query, limit: maxList}, many(func(n node) error {
		if err := n.check(); err != nil {
			return err
		}
		each(n)
		return nil
	}))
}

// whoami returns the name of the account.
func (a *account) whoami(ctx context.Context) (string, error) {
	var user struct {
		Username string `json:"username"`
	}
	err := a.client.call(ctx, request{what: "read the account", path: "users/", query: values("op", "whoami")}, func(d *json.Decoder) error {
		if err := d.Decode(&user); err != nil {
			return err
		}
		if user.Username == "" {
			return errors.New("the account has no name")
		}
		return nil
	})
	return user.Username, err
}

// event is an entry of the event log of a machine.
type event struct {
	ID          int64  `json:"id"`
	Created     string `json:"created"`
	Type        string `json:"type"`
	Description string `json:"description"`
}

// maxEvents is the largest number of events that one request returns.
const maxEvents = 1000

// events returns the newest events of a machine, newest first.
func (a *account) events(ctx context.Context, n node, level string, limit int) ([]event, error) {
	var log struct {
		Events []event `json:"events"`
	}
	err := a.client.call(ctx, request{what: "read the events of machine " + n.SystemID, path: "events/",
		query: values("op", "query", "id", n.SystemID, "level", level, "limit", strconv.Itoa(limit))},
		func(d *json.Decoder) error { return d.Decode(&log) })
	return log.Events, err
}

// acquired returns the ID of the event of the machine's last allocation and its comment. The IDs
// grow in the order of the allocations, which a lock of MAAS serializes. The text of the event is
// "(user) - comment", and its level DEBUG.
func (a *account) acquired(ctx context.Context, n node) (id int64, comment string, err error) {
	events, err := a.events(ctx, n, "DEBUG", maxEvents)
	if err != nil {
		return 0, "", err
	}
	for _, e := range events {
		if e.Type == "User acquiring node" {
			_, comment, _ = strings.Cut(e.Description, ") - ")
			return e.ID, comment, nil
		}
	}
	return math.MaxInt64, "", nil
}

// first returns the machine of the instance: the one that was allocated first of those that are
// not being released. So all workers choose the same one, whichever of them they see.
func (a *account) first(ctx context.Context, found []node) (node, error) {
	var kept []node
	for _, n := range found {
		if n.phase() != machine.Deleting {
			kept = append(kept, n)
		}
	}
	switch len(kept) {
	case 0:
		return found[0], nil
	case 1:
		return kept[0], nil
	}
	best, oldest := kept[0], int64(math.MaxInt64)
	for _, n := range kept {
		id, _, err := a.acquired(ctx, n)
		if err != nil {
			return node{}, err
		}
		if id < oldest {
			best, oldest = n, id
		}
	}
	return best, nil
}

// machineOf returns the machine of the reference, or machine.ReasonMissing.
func (a *account) machineOf(ctx context.Context, r machine.Ref) (node, error) {
	found, err := a.find(ctx, r.InstanceID)
	if err != nil {
		return node{}, err
	}
	if len(found) == 0 {
		return node{}, machine.Errorf(machine.ReasonMissing, "MAAS has no machine of instance %s", r.InstanceID)
	}
	return a.first(ctx, found)
}
