// Package trust defines the formats of identity and trust: enrollment and
// recovery tokens, node identities, certificate requests and facts, verifier
// keys, signed documents with their verification, and the bootstrap bundle.
package trust
