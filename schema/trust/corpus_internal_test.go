package trust

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const corpusDir = "testdata/fuzz/FuzzCSR"

// corpus reads the kept requests, in the fuzzer's own form.
func corpus(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(corpusDir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus: %v", err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, literal, _ := strings.Cut(string(text), "[]byte(")
		raw, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(literal), ")"))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[filepath.Base(file)] = []byte(raw)
	}
	return out
}
