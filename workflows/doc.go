// Package workflows holds the lifecycle of a node as deterministic code: one
// file per action, each readable as its phases, on one shared skeleton.
//
// Start with drain.go (a whole action), then operation.go (the skeleton every
// action runs on: claim, phases, park, undo, finish) and options.go (the one
// table of timeouts and retries). What an operation may do to the outside is in
// package activities; names and shapes are in package schema.
package workflows
