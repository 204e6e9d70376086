//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "init: only Linux has a first process of this kind")
	os.Exit(1) //nolint:forbidigo // in a main package
}
