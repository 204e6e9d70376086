package device

import (
	_ "embed" // the tables
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/health"
)

//go:embed xid.json
var xidJSON []byte

//go:embed sxid.json
var sxidJSON []byte

// maxTable bounds the size of a table.
const maxTable = 1 << 20

// Class is what an error is about.
type Class string

// The classes.
const (
	Application Class = "application" // a fault of the workload
	Information Class = "information" // no fault, or one that another code describes
	Memory      Class = "memory"
	Link        Class = "link" // NVLink, NVSwitch, or the link to the CPU
	Bus         Class = "bus"  // PCIe
	Firmware    Class = "firmware"
	Hardware    Class = "hardware"
	Software    Class = "software" // the driver or its configuration
	Unlisted    Class = "unlisted" // a code that the table does not have
)

// Row is what the sources say about one code.
type Row struct {
	Code    int    `json:"code"`
	Name    string `json:"name"`
	Class   Class  `json:"class"`
	Meaning string `json:"meaning"`
	// Models are words of the names of the models that the row is for; empty means all.
	Models []string `json:"models,omitempty"`
	// Says has the action that each source names.
	Says map[string]string `json:"says"`
	// repair is what cures the fault, and fatal if the line says that it is fatal. Where sources
	// disagree, it is the least harmful of their repairs.
	repair, fatal health.Repair
}

// action is what an action of a source means.
type action struct {
	Repair health.Repair `json:"repair"`
	Fatal  health.Repair `json:"fatal,omitempty"` // the default is Repair
}

// Table is a table of the codes of one kind of device. It is immutable.
type Table struct {
	Version string            `json:"version"`
	Sources map[string]string `json:"sources"`
	rows    map[int]Row
}

// XIDs returns the table of the XIDs of GPUs.
func XIDs() (Table, error) { return load(xidJSON) }

// SXIDs returns the table of the SXIDs of NVSwitches.
func SXIDs() (Table, error) { return load(sxidJSON) }

// load decodes a table and computes the repairs of its rows.
func load(data []byte) (Table, error) {
	var file struct {
		Version string            `json:"version"`
		Sources map[string]string `json:"sources"`
		Actions map[string]action `json:"actions"`
		Rows    []Row             `json:"rows"`
	}
	if err := schema.DecodeStrict(data, maxTable, &file); err != nil {
		return Table{}, err
	}
	t := Table{Version: file.Version, Sources: file.Sources, rows: map[int]Row{}}
	for _, r := range file.Rows {
		if _, twice := t.rows[r.Code]; twice {
			return Table{}, fmt.Errorf("code %d appears twice", r.Code)
		}
		if err := r.resolve(file.Sources, file.Actions); err != nil {
			return Table{}, fmt.Errorf("code %d: %w", r.Code, err)
		}
		t.rows[r.Code] = r
	}
	return t, nil
}

// resolve sets the repairs from the actions of the sources.
func (r *Row) resolve(sources map[string]string, actions map[string]action) error {
	if len(r.Says) == 0 {
		return errors.New("no source")
	}
	for source, name := range r.Says {
		a, ok := actions[name]
		if _, named := sources[source]; !named || !ok {
			return fmt.Errorf("unknown source %q or action %q", source, name)
		}
		if a.Fatal == "" {
			a.Fatal = a.Repair
		}
		r.repair, r.fatal = milder(r.repair, a.Repair), milder(r.fatal, a.Fatal)
	}
	return nil
}

// milder returns the less harmful of two repairs; an empty one is none.
func milder(a, b health.Repair) health.Repair {
	order := health.Repairs()
	if a == "" || slices.Index(order, b) < slices.Index(order, a) {
		return b
	}
	return a
}

// Codes returns the codes of the table in order.
func (t Table) Codes() []int {
	var codes []int
	for code := range t.rows {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return codes
}

// Lookup returns the row of a code for a model of a device; an empty model is any. A code that the
// table does not have for the model is Unlisted, and its repair is health.RepairObserve:
// report it, act on nothing.
func (t Table) Lookup(code int, model string) Row {
	r, ok := t.rows[code]
	if ok && r.covers(model) {
		return r
	}
	return Row{Code: code, Class: Unlisted, Meaning: "Code without an entry in the table of " + t.Version, repair: health.RepairObserve, fatal: health.RepairObserve}
}

func (r Row) covers(model string) bool {
	if len(r.Models) == 0 || model == "" {
		return true
	}
	return slices.ContainsFunc(strings.FieldsFunc(model, func(c rune) bool { return c == ' ' || c == '-' }), func(word string) bool {
		return slices.Contains(r.Models, strings.ToUpper(word))
	})
}

// RepairOf returns the repair of an event by the row of its code. The recovery action of an XID 154
// comes from the driver and decides before the table.
func (r Row) RepairOf(e Event) health.Repair {
	switch {
	case e.Kind == KindXID && e.Code == xidRecoveryAction:
		return e.Action.Repair()
	case e.Fatal:
		return r.fatal
	}
	return r.repair
}

// Disagree reports whether the sources name different actions.
func (r Row) Disagree() bool {
	first := ""
	for _, name := range r.Says {
		if first != "" && name != first {
			return true
		}
		first = name
	}
	return false
}
