// Package cause finds the probable cause of what is stuck. It is pure: the evidence comes from the
// database, from Temporal and from a provider, and Explain turns it into probes and ranked
// candidates. The confidence is an order of the candidates, not a measured probability.
//
// Start with report.go.
package cause
