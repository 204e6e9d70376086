package secrets

import (
	"bytes"
	"regexp"
	"strings"
)

// Redact replaces each line that contains a secret, and the lines of a private key. Of a line of
// indented JSON it replaces only the string, so that the text can be parsed.
func (s *Scanner) Redact(content []byte) []byte {
	var kept bytes.Buffer
	r := redaction{Scanner: s}
	for line := range bytes.Lines(content) {
		if r.hides(line) {
			line = s.redacted(line)
		}
		kept.Write(line)
	}
	return kept.Bytes()
}

// Redacted replaces a text that is no line of JSON.
const Redacted = "REDACTED"

// Texts returns a function that redacts the texts of one list, in their order: each line that contains
// a secret, and the lines of a private key, which may be several texts.
func (s *Scanner) Texts() func(string) string {
	r := redaction{Scanner: s}
	return func(text string) string {
		lines := strings.SplitAfter(text, "\n")
		for i, line := range lines {
			if r.hides([]byte(line)) {
				lines[i] = Redacted + line[len(strings.TrimSuffix(line, "\n")):]
			}
		}
		return strings.Join(lines, "")
	}
}

// redaction goes through the lines of a text.
type redaction struct {
	*Scanner
	inKey bool // a private key began
}

// hides reports whether the next line contains a secret or is part of a private key.
func (r *redaction) hides(line []byte) bool {
	found := r.Find(line) != ""
	if !found && !r.inKey {
		return false
	}
	starts, ends := bytes.Contains(line, []byte("-----BEGIN ")), bytes.Contains(line, []byte("-----END "))
	r.inKey = (r.inKey || starts) && !ends
	return true
}

// jsonString matches a line of indented JSON that has a string: its key, the string, and a comma.
var jsonString = regexp.MustCompile(`^(\s*(?:"[^"]*": )?)".*"(,?)\n?$`)

func (s *Scanner) redacted(line []byte) []byte {
	kept := jsonString.ReplaceAll(line, []byte("${1}\""+Redacted+"\"${2}\n"))
	if bytes.Equal(kept, line) || s.Find(kept) != "" {
		return []byte(Redacted + "\n")
	}
	return kept
}
