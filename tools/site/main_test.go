package main

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// built renders the site of the repository, and returns its HTML files by path.
func built(t *testing.T) (out string, pages map[string]string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "site")
	n, err := build(root, out)
	require.NoError(t, err)
	pages = map[string]string{}
	require.NoError(t, filepath.WalkDir(out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(out, file)
		pages[filepath.ToSlash(rel)] = string(text)
		return err
	}))
	require.Len(t, pages, n)
	return out, pages
}

// TestSite renders the repository: every Markdown page is in the site, every link and anchor inside of the site leads to
// something, and no page has a script or loads anything from another host.
func TestSite(t *testing.T) {
	t.Parallel()
	out, pages := built(t)
	files, err := markdownFiles(root)
	require.NoError(t, err)
	for _, f := range files {
		require.Contains(t, pages, target(f))
	}
	require.Contains(t, pages, apiPage)
	require.Empty(t, faults(out, pages))
	require.Contains(t, pages["docs/on-call.html"], `id="drain_blocked"`)
	require.Contains(t, pages["docs/states.html"], "This diagram is in the language Mermaid.")
	require.Contains(t, pages["index.html"], `href="docs/on-call.html"`)
	require.Contains(t, pages["docs/api.html"], `<h3 id="registerNode"><span class="method">POST</span> <code>/api/v1/admin/nodes</code></h3>`)
	require.Contains(t, pages["docs/api.html"], `href="reference/errors.html#not_found"`)
	require.Contains(t, pages["docs/api.html"], `<h3 id="NodeView">NodeView</h3>`)
	for name, text := range pages {
		require.NotRegexp(t, `<h1[^>]*>\s*</h1>|<title> · `, text, name)
		require.Contains(t, text, `aria-label="Pages"`, name)
	}
}

// faults lists links that lead nowhere, and what the Content-Security-Policy of the pages forbids.
func faults(out string, pages map[string]string) (found []string) {
	ids := map[string]map[string]bool{}
	for name, text := range pages {
		ids[name] = map[string]bool{}
		for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(text, -1) {
			ids[name][m[1]] = true
		}
	}
	for name, text := range pages {
		if regexp.MustCompile(`<script|<style|<iframe| style="| on[a-z]+="`).MatchString(withoutCode(text)) {
			found = append(found, name+" has a script or a style")
		}
		for _, m := range regexp.MustCompile(` (href|src)="([^"]*)"`).FindAllStringSubmatch(withoutCode(text), -1) {
			if problem := linkFault(out, name, m[1], m[2], ids); problem != "" {
				found = append(found, name+": "+problem)
			}
		}
	}
	return found
}

func linkFault(out, page, attribute, to string, ids map[string]map[string]bool) string {
	if strings.Contains(to, ":") {
		if attribute == "src" {
			return "loads " + to
		}
		return ""
	}
	name, anchor, _ := strings.Cut(to, "#")
	file := page
	if name != "" {
		file = path.Join(path.Dir(page), name)
	}
	if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(file))); err != nil {
		return "links to " + to
	}
	if anchor != "" && !ids[file][anchor] {
		return "links to the heading " + to
	}
	return ""
}

// withoutCode removes the code, which may contain HTML as text, and the one style sheet.
func withoutCode(text string) string {
	return regexp.MustCompile(`(?s)<code.*?</code>`).ReplaceAllString(text, "")
}

// TestFaults plants faults in a page.
func TestFaults(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, "a.html"), nil, 0o600))
	require.ElementsMatch(t, []string{"a.html has a script or a style", "a.html: links to b.html", "a.html: links to the heading #two", "a.html: loads https://x.test/y.png"},
		faults(out, map[string]string{"a.html": `<h1 id="one"></h1><a href="#one"></a><a href="#two"></a><a href="b.html"></a><img src="https://x.test/y.png">` +
			`<a href="https://x.test"></a><code><script></code><p style="x">`}))
}

// TestLinks: a link leads to the page, to the API's page, or to the file in the repository.
func TestLinks(t *testing.T) {
	t.Parallel()
	s := site{root: root, pages: []string{"README.md", "docs/README.md", "docs/on-call.md", "docs/reference/errors.md"}}
	for to, want := range map[string]string{
		"../on-call.md":              "../on-call.html",
		"../on-call.md#timeout":      "../on-call.html#timeout",
		"../../README.md":            "../../index.html",
		"../README.md":               "../index.html",
		"#codes":                     "#codes",
		"https://example.com/a.md":   "https://example.com/a.md",
		"../../schema/openapi.yaml":  "../api.html",
		"../../schema/errors.go":     repository + "blob/main/schema/errors.go",
		"../../deploy/observability": repository + "tree/main/deploy/observability",
		"../images/list.png":         "../images/list.png",
	} {
		require.Equal(t, want, s.link("docs/reference/errors.md", to), to)
	}
}

// TestClear: a folder that is not this site is not removed, also if it is a site.
func TestClear(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	kept := filepath.Join(out, "kept.txt")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(out, "style.css"), nil, 0o600))
	_, err := build(root, out)
	require.ErrorContains(t, err, "is not a site")
	require.FileExists(t, kept)
}
