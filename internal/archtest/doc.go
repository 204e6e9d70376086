// Package archtest holds what the linter cannot see of the house rules: which
// packages a folder may reach through others, that every folder has a row in
// the import table, that adapters do not import each other, and sizes and names.
// It also proves that the linters bite: testdata/planted breaks each rule once.
//
// It has no code of its own; start with imports_test.go.
package archtest
