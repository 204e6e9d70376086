// Package trust defines the formats of identity and trust: enrollment and
// recovery tokens, node identities, certificate requests and facts, verifier
// keys, signed documents and the bootstrap bundle. Package signed below it
// verifies signed documents.
package trust
