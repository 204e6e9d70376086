// Package agenttest simulates the node API for the agent's tests: a server with its
// certificate authorities, signing keys, verifier sets and identities, and corpora of
// offers that an agent must refuse.
package agenttest
