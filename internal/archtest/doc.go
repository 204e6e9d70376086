// Package archtest checks project rules that the linter cannot: the packages that a
// folder reaches transitively, imports between sibling packages, the size of files,
// receivers and schema packages, wording, and the names in documents. It also plants
// violations, in testdata/planted and in its own tests, to verify that the rules
// report them.
//
// It contains only tests; start with imports_test.go.
package archtest
