// Package cli is the operator's command. It registers and shows nodes, starts lifecycle
// operations and follows them, and delivers the decisions that a parked operation waits
// for. It uses the admin API, or with --direct Temporal alone while the API is down.
//
// Results go to stdout, messages to stderr, and the exit code comes from one table
// (exit.go). Start with root.go for the tree of commands, verbs.go for the commands that
// start operations, and follow.go for the wait.
package cli
