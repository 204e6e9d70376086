// Package fleet runs simulated nodes: many node agents in one process, to size and
// to test an installation. Each has a real certificate, a TLS connection and the
// agent's own code. Only the machine is simulated: its facts, its workloads, and
// how long its work takes.
//
// Agents can be made to misbehave, always from outside the agent: on their
// connection (wire.go), in their executors (work.go) or by the end of their
// process (member.go). Start with fleet.go; main.go is the program.
package fleet
