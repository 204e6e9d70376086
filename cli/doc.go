// Package cli is the operator's command: it registers and reads nodes through
// the admin API, starts lifecycle workflows by itself through Temporal (so it
// works while the API is down), follows them, and hands over the decisions that
// a parked operation waits for.
//
// Results go to stdout, talk to stderr, and the exit code comes from one table
// (exit.go). Start with root.go for the tree of commands, lifecycle.go for what
// every verb that starts a workflow shares, and follow.go for the waiting.
package cli
