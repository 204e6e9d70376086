// Package faults proves that identities heal by themselves. It runs lives of a
// node (enrolment, renewals, a dark time, recovery, an operator's reissue) over
// the real store on a real Postgres, the real node API and the real agent, with
// faults at every commit point, and checks that no node is ever stranded. All
// of a run follows from its seed: the scenario, the faults, and both clocks.
//
// TestSeededWork does the same for work: operations give tasks to a node over
// the real store and the real relay, while worker, API, relay and Temporal die
// between their commits (-shifts N, -shift S).
//
// It has tests only: TestSeededFaults (-seeds N, -seed S), TestExpiringFleet
// (-agents N) and TestThroughVault. docs/identity-faults.md maps each defence
// to the test that fails without it.
package faults
