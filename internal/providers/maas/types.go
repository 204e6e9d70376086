package maas

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuaas/gpuaas/schema/machine"
	"github.com/gpuaas/gpuaas/schema/text"
)

// ParseTypes parses types of the form ID:CPUS:MEMORY_MIB:GPUS:TAG+TAG, with or without the tags. Its
// errors are KindInvalidRequest and name the setting.
func ParseTypes(all []string) (types []Type, err error) {
	for _, s := range all {
		t, ok := parseType(s)
		if !ok || slices.ContainsFunc(types, func(other Type) bool { return other.ID == t.ID }) {
			return nil, faulty("GPUAAS_MAAS_TYPES: %q is not a new type of the form ID:CPUS:MEMORY_MIB:GPUS:TAG+TAG, for example h100:64:524288:8:h100", text.Line(s, 64))
		}
		types = append(types, t)
	}
	return types, nil
}

func parseType(s string) (t Type, ok bool) {
	words := strings.SplitN(s, ":", 5)
	if len(words) < 4 || !text.IsToken(words[0], 64, "-._/") {
		return t, false
	}
	t.Type = machine.Type{ID: words[0]}
	for i, to := range []*int{&t.CPUs, &t.MemoryMiB, &t.GPUs} {
		n, err := strconv.Atoi(words[i+1])
		if err != nil || n < 0 {
			return t, false
		}
		*to = n
	}
	if len(words) == 5 {
		t.Tags = strings.Split(words[4], "+")
	}
	return t, !slices.ContainsFunc(t.Tags, func(tag string) bool { return !text.IsToken(tag, 64, "-_") })
}
