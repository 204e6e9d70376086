// Package fleet runs many node agents in one process, to size and to try an
// installation: real certificates, a TLS connection for each, and the agent's
// own code. What a node would do to itself is pretended: the executors wait and
// answer.
//
// Agents can be made to misbehave, always from outside the agent: on their
// connection (wire.go), in their executors (work.go) or by the end of their
// process (member.go). Start with fleet.go; main.go is the program.
package fleet
