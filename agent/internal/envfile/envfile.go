package envfile

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// TokenVar is the variable that holds the enrollment token, later the recovery
// token.
const TokenVar = "GPUAAS_ENROLLMENT_TOKEN"

var validKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Parse reads the lines of an env file as systemd does: KEY=value,
// KEY="value" with backslash escapes, KEY='value' as is, comments starting with
// # or ;. A key given twice keeps the last value. Errors name the line and
// never repeat a value, which may be a token.
func Parse(text string) (map[string]string, error) {
	vars := map[string]string{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		key, raw, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		if !ok || !validKey.MatchString(key) {
			return nil, fmt.Errorf("line %d: want KEY=value", n)
		}
		value, err := unquote(strings.TrimSpace(raw))
		if err == nil && strings.ContainsRune(value, 0) {
			err = errors.New("contains a NUL byte")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: value of %s: %w", n, key, err)
		}
		vars[key] = value
	}
	return vars, nil
}

// unquote reads a value as systemd does.
func unquote(raw string) (string, error) {
	switch {
	case strings.HasPrefix(raw, `"`):
		v, err := strconv.Unquote(raw)
		if err != nil {
			return "", errors.New("bad double quotes")
		}
		return v, nil
	case strings.HasPrefix(raw, "'"):
		if len(raw) < 2 || strings.Count(raw, "'") != 2 || !strings.HasSuffix(raw, "'") {
			return "", errors.New("bad single quotes")
		}
		return raw[1 : len(raw)-1], nil
	}
	return raw, nil
}

// Set returns the text with the key's value replaced on every line that sets it,
// or added at the end; every other line stays as it is.
func Set(text, key, value string) string {
	line, found := key+"="+strconv.Quote(value)+"\n", false
	var out strings.Builder
	for l := range strings.Lines(text) {
		name, _, ok := strings.Cut(strings.TrimSpace(l), "=")
		switch {
		case !ok || strings.TrimSpace(name) != key:
			out.WriteString(l)
		case !found:
			found = true
			out.WriteString(line)
		}
	}
	if !found {
		if text != "" && !strings.HasSuffix(text, "\n") {
			out.WriteString("\n")
		}
		out.WriteString(line)
	}
	return out.String()
}
