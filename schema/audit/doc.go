// Package audit defines the audit trail's events and verifies their hash chains.
//
// Each stream (a node's id, or "system") is one chain. An event's hash is the
// SHA-256, in lower-case hex, of the concatenation of these fields in UTF-8, each
// written as its length in bytes in decimal, a colon and the bytes:
//
//  1. the text "gpuaas audit v1"
//  2. stream
//  3. seq, in decimal
//  4. at, in microseconds since 1970-01-01T00:00:00Z, in decimal
//  5. actor
//  6. via
//  7. action
//  8. target
//  9. result
//  10. reason
//  11. correlation_id
//  12. operation_id
//  13. detail: the concatenation of key and value of each entry, each a field of
//     the same form, sorted by the bytes of the keys
//  14. prev_hash, the hash of the stream's previous event, empty for the first
//
// The database function audit_append is the only writer: seq, at and prev_hash
// are known only under its lock. This package only verifies.
package audit
