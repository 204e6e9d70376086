//go:build !linux

package pgtest

func hasRoom(string) bool { return false }
