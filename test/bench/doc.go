// Package main compares this system with minimal implementations and with a peer, and
// prints each figure as a ratio within one run, because absolute numbers depend on the
// machine. docs/benchmarks.md describes each figure.
//
// Start at main.go, which lists the benchmarks. Components that need a separate process
// (minimal servers, minimal agents, the peer's workers) are this program with a hidden
// argument; see roles.go.
package main
