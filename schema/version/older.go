package version

import (
	"slices"
	"strconv"
	"strings"
)

// Older reports whether version a is before version b: vMAJOR.MINOR.PATCH by number, and a
// pre-release before its release. It is false if one of them has another form, and for two
// pre-releases of one version.
func Older(a, b string) bool {
	x, xPre, ok := numbers(a)
	y, yPre, known := numbers(b)
	if !ok || !known {
		return false
	}
	order := slices.Compare(x, y)
	return order < 0 || order == 0 && xPre && !yPre
}

// numbers returns the numbers of a version, and whether it is a pre-release.
func numbers(v string) (parts []int, pre, ok bool) {
	v, _, _ = strings.Cut(v, "+")
	core, _, pre := strings.Cut(strings.TrimPrefix(v, "v"), "-")
	for text := range strings.SplitSeq(core, ".") {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, false, false
		}
		parts = append(parts, int(n))
	}
	return parts, pre, len(parts) == 3
}
