package dev

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpuaas/gpuaas/schema"
)

// report is the result of `dev status`.
type report struct {
	Parts []partStatus `json:"parts"`
}

// partStatus is one part as `dev status` shows it.
type partStatus struct {
	Name string `json:"name"`
	// PID is 0 for a part that is external or not running.
	PID     int    `json:"pid"`
	Address string `json:"address"`
	Healthy bool   `json:"healthy"`
	// Log is "" for an external part.
	Log string `json:"log"`
	// Reason explains why a part is not healthy.
	Reason string `json:"reason,omitempty"`
}

func newStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether each part of the stack is healthy",
		Long: `Show the process, address, health, and log file of each part of the stack. The
command probes every part when it runs, and changes nothing. The exit code is 6 if a
part is not healthy.`,
		Example: `  gpuaas dev status
  gpuaas dev status -o json | jq '.parts[] | select(.healthy | not)'`,
		Args: exactArgs(), RunE: func(c *cobra.Command, _ []string) error {
			s, err := openStack(o.dir, o.stderr)
			if err != nil {
				return err
			}
			r, err := s.status(c.Context())
			if err != nil {
				return err
			}
			if err := o.print(r, r.table); err != nil || !slices.ContainsFunc(r.Parts, func(p partStatus) bool { return !p.Healthy }) {
				return err
			}
			fmt.Fprintf(o.stderr, "a part is not healthy; %s starts what is missing\n", s.upCommand)
			return &EndedError{Program: c.CommandPath(), Code: schema.ExitUnreachable}
		},
	}
}

// status checks all parts concurrently.
func (s *stack) status(ctx context.Context) (report, error) {
	parts, err := s.parts()
	if err != nil {
		return report{}, err
	}
	r := report{Parts: make([]partStatus, len(parts))}
	var checks sync.WaitGroup
	for i, p := range parts {
		checks.Go(func() { r.Parts[i] = s.statusOf(ctx, p) })
	}
	checks.Wait()
	return r, nil
}

func (s *stack) statusOf(ctx context.Context, p part) partStatus {
	st := partStatus{Name: p.name, Address: p.address}
	owner, runs := s.layout.processes().running(p.owner())
	ours := p.ours() || p.owner() != p.name
	if ours {
		st.Log = s.layout.logPath(p.owner())
	}
	switch {
	case ours && !runs:
		st.Reason = "not running"
		return st
	case runs:
		st.PID = owner.PID
	}
	if err := p.healthy.once(ctx); err != nil {
		st.Reason = err.Error()
		return st
	}
	st.Healthy = true
	return st
}

// table writes the report as a table.
func (r report) table(w io.Writer) {
	fmt.Fprintln(w, "PART\tPID\tADDRESS\tHEALTH\tLOG")
	for _, p := range r.Parts {
		pid, health, log := "-", "healthy", p.Log
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		if !p.Healthy {
			health = p.Reason
		}
		if log == "" {
			log = "(external)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, pid, p.Address, health, relative(log))
	}
}

// relative returns a path relative to the working directory, if it is inside it.
func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := cutFolder(path, wd); ok {
		return rest
	}
	return path
}
