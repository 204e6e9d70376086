// Package fleet runs many node agents in one process, to size and to try an
// installation: real certificates, a TLS connection for each, and the agent's
// own code. Only the machine below the agent is pretended: its facts, its
// workloads, and how long its work takes.
//
// Agents can be made to misbehave, always from outside the agent: on their
// connection (wire.go), in their executors (work.go) or by the end of their
// process (member.go). Start with fleet.go; main.go is the program.
package fleet
