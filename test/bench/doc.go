// Package main measures this system against floors and against a peer that it
// brings up itself, and prints each figure as a ratio of one run: absolute
// numbers are those of a machine, a ratio is the design's. docs/benchmarks.md
// says what each figure means.
//
// Start at main.go, which lists the benchmarks. The programs that need a process
// of their own (floor servers, light agents, the peer's workers) are this same
// program with a hidden name, in roles.go.
package main
