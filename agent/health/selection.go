package health

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuaas/gpuaas/schema/health"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// Selection says which checks run. The zero value runs none.
type Selection struct {
	some bool
	off  []string
}

// ParseSelection reads "all", "none", or the names of checks to switch off: -gpu_fan,-host_clock. The
// empty text is "none". An error names what is wrong.
func ParseSelection(text string) (s Selection, err error) {
	switch text {
	case "", "none":
		return s, nil
	case "all":
		return Selection{some: true}, nil
	}
	checkers, err := host.Checkers()
	if err != nil {
		return s, err
	}
	var names []string
	for _, c := range checkers {
		names = append(names, c.Name())
	}
	s.some = true
	for field := range strings.SplitSeq(text, ",") {
		name, minus := strings.CutPrefix(strings.TrimSpace(field), "-")
		if !minus || !slices.Contains(names, name) {
			return s, fmt.Errorf("%q is not all, none, or checks to switch off, such as -%s; the checks are %s", text, names[0], strings.Join(names, ", "))
		}
		s.off = append(s.off, name)
	}
	return s, nil
}

// of returns the checkers that are on.
func (s Selection) of(all []health.Checker[host.Sample]) []health.Checker[host.Sample] {
	if !s.some {
		return nil
	}
	return slices.DeleteFunc(all, func(c health.Checker[host.Sample]) bool { return slices.Contains(s.off, c.Name()) })
}
