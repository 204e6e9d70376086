// Package workflows runs the plans of package schema/lifecycle as deterministic
// code.
//
// Start with run.go, the skeleton of every action: claim, phases, undo, record.
// phase.go runs one phase and parks it. steps.go maps phase names to step bodies;
// node.go, machine.go and enrollment.go hold the bodies. options.go is the table
// of timeouts and retries. Effects on the outside are in package activities.
package workflows
