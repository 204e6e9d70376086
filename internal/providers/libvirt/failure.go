package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// problem is why a command failed.
type problem int

// The problems. With noConnection, unauthorized and the later ones, libvirt did nothing.
const (
	unknown problem = iota
	lost            // there is no result: the connection ended, or the time was over
	noConnection
	unauthorized
	// noDomain: virsh found no domain. It prints the same if the connection ends while it looks
	// for the domain, so the caller verifies with a list.
	noDomain
	active
	inactive
	busy
	full
	// refused: libvirt or QEMU rejects the definition, and undoes what it began.
	refused
)

// A rule recognizes a problem in what virsh prints with LC_ALL=C, in lower case.
type rule struct {
	problem
	texts []string
}

// rules are in order: the first match applies.
func rules() []rule {
	return []rule{
		{unauthorized, []string{"authentication failed", "authentication unavailable", "access denied"}},
		{noConnection, []string{"failed to connect to the hypervisor", "failed to reconnect to the hypervisor"}},
		{lost, []string{"end of file while reading", "connection reset", "client socket is closed", "keepalive timeout", "disconnected from", "broken pipe",
			"cannot recv data", "cannot write data", "received hangup event"}},
		{active, []string{"is already active", "is already running"}},
		{inactive, []string{"domain is not running"}},
		{noDomain, []string{"failed to get domain", "domain not found", "no domain with matching"}},
		{busy, []string{"cannot acquire state change lock", "too many active clients", "too many connections"}},
		{full, []string{"cannot allocate memory", "cannot set up guest memory", "no space left on device"}},
		{refused, []string{"xml error", "(domain_definition)", "unsupported configuration", "invalid argument", "already exists with uuid", "unknown command",
			"requires <", "internal error", "operation failed"}},
	}
}

// classify returns the problem of a command that failed with a result.
func classify(r Result) problem {
	text := strings.ToLower(string(r.Stderr))
	has := func(t string) bool { return strings.Contains(text, t) }
	for _, rule := range rules() {
		if !slices.ContainsFunc(rule.texts, has) {
			continue
		}
		if rule.problem == noConnection && has("permission denied") {
			return unauthorized
		}
		return rule.problem
	}
	return unknown
}

// failure is the error of a command.
type failure struct {
	problem
	command string
	// changes is set if the command may have changed a domain.
	changes bool
	detail  string
	cause   error
}

// Error implements error.
func (f *failure) Error() string { return f.command + ": " + f.detail }

// is reports whether err is a failure with one of the problems.
func is(err error, problems ...problem) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && slices.Contains(problems, f.problem)
}

// reason returns the reason of machine.Problems.
func (f *failure) reason() string {
	switch f.problem {
	case noConnection, noDomain, busy, active, inactive:
		return machine.ReasonUnavailable
	case unauthorized:
		return machine.ReasonAuth
	case full:
		return machine.ReasonCapacity
	case refused:
		if f.command == "create" || f.command == "define" || f.command == "start" {
			return machine.ReasonRejected
		}
	case lost, unknown:
	}
	if f.changes {
		return machine.ReasonAmbiguous
	}
	return machine.ReasonUnavailable
}

// report returns the error of the port for a failure; another error is one already.
func report(err error, what, instanceID string) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	return machine.Wrap(f.reason(), f.cause, "%s the machine of instance %s: virsh %s: %s", what, instanceID, f.command, f.detail)
}

// maxDetail bounds what an error quotes of virsh's messages.
const maxDetail = 400

// detailOf returns virsh's messages in one line.
func detailOf(r Result) string {
	var parts []string
	for line := range strings.Lines(string(r.Stderr)) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "error:"))
		line = strings.Map(func(c rune) rune {
			if !unicode.IsPrint(c) {
				return ' '
			}
			return c
		}, line)
		if line != "" {
			parts = append(parts, line)
		}
	}
	text := []rune(strings.Join(parts, ": "))
	if len(text) == 0 {
		return fmt.Sprintf("exit code %d without a message", r.Exit)
	}
	return string(text[:min(len(text), maxDetail)])
}

// run runs a command and returns its output. Its error is a failure.
func (p *Provider) run(ctx context.Context, changes bool, stdin []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.settings.CallTimeout)
	defer cancel()
	f := &failure{command: strings.Fields(args[0])[0], changes: changes}
	r, err := p.runner.Run(ctx, args, stdin)
	switch {
	case errors.Is(err, errNotStarted):
		f.problem, f.cause, f.detail = noConnection, err, "virsh did not start"
	case err != nil:
		f.problem, f.cause, f.detail = lost, err, "no result in time"
	case r.Exit != 0:
		f.problem, f.detail = classify(r), detailOf(r)
	default:
		return r.Stdout, nil
	}
	return r.Stdout, f
}
