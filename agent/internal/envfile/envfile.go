package envfile

import (
	"fmt"
	"strconv"
	"strings"
)

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
		if !ok || !validEnvKey(key) {
			return nil, fmt.Errorf("line %d: want KEY=value", n)
		}
		value, err := Unquote(strings.TrimSpace(raw))
		if err != nil {
			return nil, fmt.Errorf("line %d: value of %s: %w", n, key, err)
		}
		vars[key] = value
	}
	return vars, nil
}

func validEnvKey(key string) bool {
	for i, r := range key {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return key != ""
}

// Unquote reads a value as systemd does.
func Unquote(raw string) (string, error) {
	switch {
	case strings.HasPrefix(raw, `"`):
		v, err := strconv.Unquote(raw)
		if err != nil {
			return "", fmt.Errorf("bad double quotes")
		}
		return noNUL(v)
	case strings.HasPrefix(raw, "'"):
		if len(raw) < 2 || strings.Count(raw, "'") != 2 || !strings.HasSuffix(raw, "'") {
			return "", fmt.Errorf("bad single quotes")
		}
		return noNUL(raw[1 : len(raw)-1])
	}
	return noNUL(raw)
}

func noNUL(v string) (string, error) {
	if strings.ContainsRune(v, 0) {
		return "", fmt.Errorf("holds a NUL byte")
	}
	return v, nil
}

// TokenVar is the variable that holds the enrollment token, later the recovery
// token.
const TokenVar = "GPUAAS_ENROLLMENT_TOKEN"

// Set returns the text with the key's value replaced on every line that sets it,
// or added at the end; every other line stays as it is.
func Set(text, key, value string) string {
	line, found := key+"="+strconv.Quote(value), false
	var out strings.Builder
	for l := range strings.Lines(text) {
		name, _, ok := strings.Cut(strings.TrimSpace(l), "=")
		if !ok || strings.TrimSpace(name) != key {
			out.WriteString(l)
			continue
		}
		if !found {
			out.WriteString(line + "\n")
		}
		found = true
	}
	if !found {
		if text != "" && !strings.HasSuffix(text, "\n") {
			out.WriteString("\n")
		}
		out.WriteString(line + "\n")
	}
	return out.String()
}
