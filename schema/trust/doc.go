// Package trust holds the formats of identity and trust: enrollment and recovery
// tokens, node identities, verifier sets, lease keys and the bootstrap bundle.
package trust
