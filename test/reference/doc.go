// Package reference generates the pages of docs/reference that describe more than one program: the errors,
// the audit events and the index of the variables. ./task gen rewrites them.
//
// It contains only tests.
package reference
