package secrets

import (
	"bytes"
	"regexp"
)

// Redact replaces each line that contains a secret, and the lines of a private key. Of a line of
// indented JSON it replaces only the string, so that the text can be parsed.
func (s *Scanner) Redact(content []byte) []byte {
	var kept bytes.Buffer
	inKey := false
	for line := range bytes.Lines(content) {
		found := s.Find(line) != ""
		starts, ends := bytes.Contains(line, []byte("-----BEGIN ")), bytes.Contains(line, []byte("-----END "))
		if found || inKey {
			inKey = (inKey || starts) && !ends
			line = s.redacted(line)
		}
		kept.Write(line)
	}
	return kept.Bytes()
}

// jsonString matches a line of indented JSON that has a string: its key, the string, and a comma.
var jsonString = regexp.MustCompile(`^(\s*(?:"[^"]*": )?)".*"(,?)\n?$`)

func (s *Scanner) redacted(line []byte) []byte {
	kept := jsonString.ReplaceAll(line, []byte("${1}\"REDACTED\"${2}\n"))
	if bytes.Equal(kept, line) || s.Find(kept) != "" {
		return []byte("REDACTED\n")
	}
	return kept
}
