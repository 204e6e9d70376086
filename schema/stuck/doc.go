// Package stuck has the table of what keeps a node from working: for each row its limit, the likely
// cause, the probes, the party that must act and the first option. The list of what is stuck, the
// gauges, the alert rules and docs/on-call.md derive from it. The rows of phases take their limits
// from the plans of package lifecycle.
//
// Start with table.go.
package stuck
