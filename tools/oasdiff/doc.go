// Package oasdiff pins the program that finds breaking changes of the API document, and tests check.sh,
// which runs it.
package oasdiff
