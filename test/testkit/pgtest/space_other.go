//go:build !linux

package pgtest

func hasSpace(string) bool { return false }
