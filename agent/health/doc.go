// Package health samples the host of the agent, runs the checkers of schema/health/host on the sample,
// and keeps the report for the control plane. Start with monitor.go; each source of a sample has a
// file of its own.
//
// The kernel log and what the host prints are untrusted: they are bounded, and only parsed values and
// printable text leave the package.
package health
