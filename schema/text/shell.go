package text

import "strings"

// ShellQuote returns s as one word of a POSIX shell. s contains no NUL byte, which no shell
// can hold.
func ShellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
