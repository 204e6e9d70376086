package archtest

import (
	"bytes"
	"go/scanner"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/cli"
	"github.com/gpuaas/gpuaas/deploy/dev"
)

// TestDocCommands checks that the commands and flags of every gpuaas command line in
// a code span or block of a document exist.
func TestDocCommands(t *testing.T) {
	t.Parallel()
	goFiles(t, func(string, string) {}) // makes go test's cache depend on every file
	assert.Empty(t, badCommands(t, documents(t)))
}

// badCommands lists the command lines that the CLI rejects.
func badCommands(t *testing.T, docs []document) (found []string) {
	t.Helper()
	for _, d := range docs {
		for _, line := range commandLines(d.text) {
			if problem := tryCommand(t, line); problem != "" {
				found = append(found, d.path+": gpuaas "+strings.Join(line, " ")+": "+problem)
			}
		}
	}
	return found
}

// commandLines returns the arguments of each gpuaas command in the code of a document.
func commandLines(text string) (lines [][]string) {
	code := regexp.MustCompile("(?s)```[^\n]*\n(.*?)```|`([^`\n]+)`")
	for _, m := range code.FindAllStringSubmatch(text, -1) {
		joined := strings.ReplaceAll(m[1]+m[2], "\\\n", " ")
		for line := range strings.Lines(joined) {
			words := shellWords(line)
			for i, w := range words {
				if w != "gpuaas" || i+1 == len(words) {
					continue
				}
				rest := words[i+1:]
				if end := slices.Index(rest, operator); end >= 0 {
					rest = rest[:end]
				}
				if len(rest) > 0 {
					lines = append(lines, rest)
				}
			}
		}
	}
	return lines
}

// operator replaces every shell operator.
const operator = ";"

// shellWords splits a line like a shell. A command substitution is a separate command.
func shellWords(line string) (words []string) {
	line = strings.NewReplacer(`"$(`, " ; ", `$(`, " ; ", `)"`, " ; ").Replace(line)
	word := regexp.MustCompile(`"([^"]*)"|'([^']*)'|(&&|[|;<>()#])|((?:[^\s"'|;<>()#&]|&[^&])+)`)
	for _, m := range word.FindAllStringSubmatch(line, -1) {
		switch m[3] {
		case "#":
			return words
		case "":
			words = append(words, strings.Trim(m[0], `"'`))
		default:
			words = append(words, operator)
		}
	}
	return words
}

// tryCommand asks the CLI for help on a command line, and returns why it is wrong. The
// help flag precedes the other flags, so that it is never the value of one of them.
func tryCommand(t *testing.T, line []string) (problem string) {
	t.Helper()
	flags := slices.IndexFunc(line, func(w string) bool { return strings.HasPrefix(w, "-") })
	if flags < 0 {
		flags = len(line)
	}
	var out, stderr bytes.Buffer
	code := cli.Main(t.Context(), cli.Platform{Dev: dev.NewCommand}, slices.Insert(slices.Clone(line), flags, "--help"),
		cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &stderr})
	if code != 0 && !strings.Contains(stderr.String(), "flag needs an argument") {
		return strings.TrimSpace(stderr.String())
	}
	// For an unknown command cobra prints the help of its group.
	path := strings.Join(append([]string{"  gpuaas"}, line[:flags]...), " ")
	group := regexp.MustCompile(`(?m)^(  gpuaas.*) \[command\]$`).FindStringSubmatch(out.String())
	if len(group) > 0 && group[1] != path {
		return "no such command"
	}
	return ""
}

// TestCommandsInStrings checks that each gpuaas command which a Go string names exists:
// operators copy them from errors and from the options of parked operations.
func TestCommandsInStrings(t *testing.T) {
	t.Parallel()
	assert.Empty(t, badStrings(t, productFiles(t)))
}

// badStrings lists the commands in Go strings that the CLI does not have. Only the name
// of the command is checked, because flags and arguments are often format verbs, and only
// below a group of commands, because prose has other words after gpuaas.
func badStrings(t *testing.T, sources map[string]string) (found []string) {
	t.Helper()
	named := regexp.MustCompile(`(?:^|[^\w./-])gpuaas ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?`)
	bad := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(sources)) {
		for _, text := range stringLiterals(sources[path]) {
			for _, m := range named.FindAllStringSubmatch(text, -1) {
				line := strings.TrimSpace(m[1] + " " + m[2])
				if _, known := bad[line]; !known {
					bad[line] = tryCommand(t, m[1:2]) == "" && tryCommand(t, strings.Fields(line)) != ""
				}
				if bad[line] {
					found = append(found, path+": gpuaas "+line)
				}
			}
		}
	}
	return found
}

func stringLiterals(text string) (literals []string) {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(text)), []byte(text), nil, 0)
	for {
		switch _, tok, lit := s.Scan(); tok {
		case token.EOF:
			return literals
		case token.STRING:
			if text, err := strconv.Unquote(lit); err == nil {
				literals = append(literals, text)
			}
		}
	}
}

func TestCommandsInStringsReports(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"a.go: gpuaas node drian"}, badStrings(t, map[string]string{
		"a.go": "package a\n\n// gpuaas node rpovision\nvar s = []string{\"gpuaas manages nodes\", `run: gpuaas node drian %s`, \"gpuaas node drain %s\", \"gpuaas stuck\"}\n",
	}))
}

func TestDocCommandsReports(t *testing.T) {
	t.Parallel()
	docs := []document{{"a.md", "gpuaas does much. `gpuaas stuck` and `gpuaas op` and `gpuaas --direct` and `gpuaas node enroll --env-file`\n" +
		"```sh\nexport A=1 && gpuaas node drain gpu-17 --reason \"a | b\" \\\n  --yes # gpuaas or not\n" +
		"eval \"$(gpuaas dev env)\"\ngpuaas node bootstrap-script gpu-17 | ssh root@gpu-17 sh\n```\n"},
		{"b.md", "`gpuaas sutck` `gpuaas node drian NODE`\n```\ngpuaas node drain gpu-17 --fast | tee log\neval \"$(gpuaas dev start)\"\n```\n"}}
	require.Len(t, commandLines(docs[0].text), 7)
	got := badCommands(t, docs)
	require.Len(t, got, 4, got)
	for i, want := range []string{"b.md: gpuaas sutck: ", "b.md: gpuaas node drian NODE: ", "b.md: gpuaas node drain gpu-17 --fast: ", "b.md: gpuaas dev start: "} {
		require.True(t, strings.HasPrefix(got[i], want), got[i])
	}
}
