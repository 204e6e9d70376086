// Package schema has the definitions that all programs share: error kinds with
// their HTTP status and exit code, ids, secrets that cannot be encoded by mistake,
// and strict JSON decoding.
//
// The packages below it define the formats that outlive a process: lifecycle (states,
// actions, operations), task, trust, wire (HTTP bodies), audit and inventory. Package
// version has the version of the running program, and text checks foreign text. They
// import nothing else of this project and no client library.
package schema
