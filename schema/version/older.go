package version

import (
	"strings"

	"golang.org/x/mod/semver"
)

// Older reports whether version a is before version b by the precedence of Semantic Versioning,
// with or without a leading v. It is false if one of them is no such version.
func Older(a, b string) bool {
	x, y := "v"+strings.TrimPrefix(a, "v"), "v"+strings.TrimPrefix(b, "v")
	return semver.IsValid(x) && semver.IsValid(y) && semver.Compare(x, y) < 0
}
