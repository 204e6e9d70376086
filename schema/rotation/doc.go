// Package rotation describes how the keys that nodes trust are replaced: the phases of a
// rotation, the verifier set of each phase, and what must be true before the next one. It
// only computes; internal/store keeps a rotation's record, and the workflow in workflows
// drives it.
package rotation
