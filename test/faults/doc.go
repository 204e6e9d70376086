// Package faults verifies that nodes recover their identities without help. It
// simulates node lifecycles (enrollment, renewals, a disconnection, recovery, an
// operator's reissue) with the real store on a real Postgres, the real node API and
// the real agent, injects faults at every commit point, and checks that no node is
// ever stranded. A seed determines a whole run: the scenario, the faults, and both
// clocks.
//
// TestSeededWork does the same for operations: the real workflows and activities run
// shifts of work in virtual time, on a store in memory whose rules TestStoreContract
// compares with the real one's, while each party fails and operators decide
// (-shifts N, -after-shift N, -shift S).
//
// TestSeededDispatch does the same for tasks: operations enqueue tasks for a node with
// the real store and the real relay, while worker, API, relay and Temporal crash
// between their commits (-rounds N, -round S).
//
// TestStorm lets 30 % of a fleet on a real stack fail within a minute while repairs are
// armed, and counts the repairs that start (-storm N). It needs bin/ (./task build).
//
// The package contains only tests: TestSeededFaults (-seeds N, -seed S),
// TestExpiringFleet (-agents N) and TestThroughVault. docs/identity-faults.md maps
// each defense to the test that fails without it.
package faults
