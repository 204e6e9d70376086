package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// Recording is a Runner that behaves like virsh of a host without domains: the same exit codes,
// messages and documents for the commands that the provider uses. It is safe for concurrent use.
type Recording struct {
	mu       sync.Mutex
	domains  map[string]*recorded
	commands []string
}

// recorded is a domain in memory.
type recorded struct {
	domainXML
	state
	persistent bool
}

// NewRecording returns a recording of a host without domains.
func NewRecording() *Recording { return &Recording{domains: map[string]*recorded{}} }

// Commands returns the commands so far, one a line, without their input.
func (r *Recording) Commands() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.commands)
}

// Crash makes a domain crash. It returns false if the domain has no process.
func (r *Recording) Crash(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.domains[name]
	if d == nil || !d.active() {
		return false
	}
	d.state = state{stateCrashed, 0}
	return true
}

// Run implements Runner. As virsh does, it reads a single argument as commands separated by
// semicolons, continues after an error, and exits with the code of the last command.
func (r *Recording) Run(ctx context.Context, args []string, stdin []byte) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, errors.Join(errNotStarted, err)
	}
	commands := [][]string{args}
	if len(args) == 1 {
		commands = nil
		for c := range strings.SplitSeq(args[0], ";") {
			commands = append(commands, strings.Fields(c))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var result Result
	for _, c := range commands {
		r.commands = append(r.commands, strings.Join(c, " "))
		out, err := r.command(c, stdin)
		result.Stdout = append(result.Stdout, out...)
		result.Exit = 0
		if err != nil {
			result.Exit = 1
			result.Stderr = fmt.Appendf(result.Stderr, "error: %v\n", err)
		}
	}
	return result, nil
}

// command runs one command.
func (r *Recording) command(args []string, stdin []byte) (out string, err error) {
	switch args[0] {
	case "list":
		return strings.Join(slices.Sorted(maps.Keys(r.domains)), "\n") + "\n", nil
	case "create":
		return "", r.create(stdin)
	case "define":
		return "", r.define(stdin)
	}
	commands := map[string]func(*recorded) (string, error){
		"dumpxml": (*recorded).dump, "domstats": (*recorded).stats, "start": r.start,
		"destroy": r.destroy, "reset": (*recorded).reset, "undefine": r.undefine,
	}
	run, ok := commands[args[0]]
	if !ok {
		return "", fmt.Errorf("unknown command: '%s'", args[0])
	}
	name := ""
	for _, a := range args[1:] {
		if !strings.HasPrefix(a, "-") {
			name = a
		}
	}
	d := r.domains[name]
	if d == nil {
		return "", fmt.Errorf("failed to get domain '%s'", name)
	}
	return run(d)
}

func (r *Recording) create(stdin []byte) error {
	d, err := r.read("create", stdin)
	if err != nil {
		return err
	}
	old := r.domains[d.Name]
	if old != nil && old.active() {
		return fmt.Errorf("Failed to create domain from /dev/stdin\nerror: Requested operation is not valid: domain '%s' is already active", d.Name) //nolint:staticcheck // virsh's text
	}
	d.persistent = old != nil
	r.domains[d.Name] = d
	_, err = r.start(d)
	return err
}

func (r *Recording) define(stdin []byte) error {
	d, err := r.read("define", stdin)
	if err != nil {
		return err
	}
	d.persistent, d.state = true, state{stateOff, 0}
	if old := r.domains[d.Name]; old != nil {
		d.state = old.state
	}
	r.domains[d.Name] = d
	return nil
}

// read parses a definition, and rejects one whose name or UUID another domain has.
func (r *Recording) read(verb string, stdin []byte) (*recorded, error) {
	d := &recorded{}
	if err := xml.Unmarshal(stdin, &d.domainXML); err != nil || d.Name == "" {
		return nil, fmt.Errorf("Failed to %s domain from /dev/stdin\nerror: (domain_definition):1: %w", verb, err) //nolint:staticcheck // virsh's text
	}
	for _, other := range r.domains {
		if (other.Name == d.Name) != (other.UUID == d.UUID) {
			return nil, fmt.Errorf("Failed to %s domain from /dev/stdin\nerror: operation failed: domain '%s' already exists with uuid %s", verb, other.Name, other.UUID) //nolint:staticcheck // virsh's text
		}
	}
	return d, nil
}

// start starts a domain. QEMU reads the boot file, opens the disk, and creates the console.
func (r *Recording) start(d *recorded) (string, error) {
	if d.active() && d.state != (state{}) {
		return "", errors.New("Domain is already active") //nolint:staticcheck // virsh's text
	}
	err := d.boot()
	if err == nil {
		d.state = state{stateRunning, 1}
		return "", nil
	}
	d.state = state{stateOff, offFailed}
	if !d.persistent {
		delete(r.domains, d.Name)
	}
	return "", fmt.Errorf("Failed to start domain '%s'\nerror: internal error: qemu unexpectedly closed the monitor: %w", d.Name, err) //nolint:staticcheck // virsh's text
}

func (d *recorded) boot() error {
	for _, s := range d.SysInfo {
		for _, e := range s.Entries {
			if _, err := os.ReadFile(e.File); err != nil {
				return err
			}
		}
	}
	if disk := d.Devices.Disk; disk != nil {
		if _, err := os.Stat(disk.Source.File); err != nil {
			return err
		}
	}
	if d.Devices.Serial.Source == nil {
		return nil
	}
	console, err := os.OpenFile(d.Devices.Serial.Source.Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = console.WriteString("recorded: there is no machine\n")
	return errors.Join(err, console.Close())
}

func (r *Recording) destroy(d *recorded) (string, error) {
	if !d.active() {
		return "", fmt.Errorf("Failed to destroy domain '%s'\nerror: Requested operation is not valid: domain is not running", d.Name) //nolint:staticcheck // virsh's text
	}
	d.state = state{stateOff, offDestroyed}
	if !d.persistent {
		delete(r.domains, d.Name)
	}
	return "", nil
}

func (d *recorded) reset() (string, error) {
	if !d.active() {
		return "", fmt.Errorf("Failed to reset domain '%s'\nerror: Requested operation is not valid: domain is not running", d.Name) //nolint:staticcheck // virsh's text
	}
	d.state = state{stateRunning, 1}
	return "", nil
}

func (r *Recording) undefine(d *recorded) (string, error) {
	if !d.persistent {
		return "", fmt.Errorf("Failed to undefine domain '%s'\nerror: Requested operation is not valid: cannot undefine transient domain", d.Name) //nolint:staticcheck // virsh's text
	}
	d.persistent = false
	if !d.active() {
		delete(r.domains, d.Name)
	}
	return "", nil
}

func (d *recorded) dump() (string, error) {
	text, err := d.encode()
	// libvirt's document begins with attributes of the first element.
	return strings.Replace(string(text), "<domain>", "<domain type='qemu'>", 1) + "\n", err
}

func (d *recorded) stats() (string, error) {
	return fmt.Sprintf("Domain: '%s'\n  state.state=%d\n  state.reason=%d\n\n", d.Name, d.state.state, d.reason), nil
}
