// Package upgrade upgrades an installation from the previous version to this one while operations
// run, rolls it back, and upgrades it again, as docs/upgrade.md says. The previous version is the
// commit in testdata/previous, which the test builds from git.
//
// It needs bin/ (./task build) and git. Run it with ./task upgrade-test. With -short it runs no test.
package upgrade
