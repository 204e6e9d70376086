package main

import (
	"bytes"
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// repository is the address of the source code, for links to files that are no pages.
const repository = "https://github.com/gpuaas/gpuaas/"

// markdown is GitHub's Markdown. The pages are of this repository, so that their HTML is kept. Tables have no
// style attributes, which the Content-Security-Policy of the pages forbids.
func markdown() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.Strikethrough, extension.Linkify, extension.TaskList,
			extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe()))
}

// anchors makes the anchors of headings as GitHub does.
type anchors struct{ used map[string]bool }

// Generate implements parser.IDs.
func (a *anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	base := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, string(heading))
	name := base
	for n := 1; a.used[name]; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	a.used[name] = true
	return []byte(name)
}

// Put implements parser.IDs.
func (a *anchors) Put(id []byte) { a.used[string(id)] = true }

// parse returns the tree of a Markdown file.
func parse(source []byte) (goldmark.Markdown, ast.Node) {
	m := markdown()
	return m, m.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(&anchors{map[string]bool{}}))))
}

// html renders a file with links that work in the site, and returns the title, its first heading.
func (s site) html(file string, source []byte) (title string, body template.HTML, err error) {
	m, doc := parse(source)
	var diagrams []*ast.FencedCodeBlock
	err = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if title == "" {
				title = plain(n, source)
			}
		case *ast.Link:
			n.Destination = []byte(s.link(file, string(n.Destination)))
		case *ast.FencedCodeBlock:
			if string(n.Language(source)) == "mermaid" {
				diagrams = append(diagrams, n)
			}
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return "", "", err
	}
	for _, d := range diagrams {
		addNote(d, repository+"blob/main/"+file)
	}
	var b bytes.Buffer
	err = m.Renderer().Render(&b, source, doc)
	return title, template.HTML(b.String()), err
}

// addNote adds a paragraph after a diagram, which stays text: its language needs a script to be drawn.
func addNote(diagram ast.Node, address string) {
	link := ast.NewLink()
	link.Destination = []byte(address)
	link.AppendChild(link, ast.NewString([]byte("drawn in the source of this page")))
	note := ast.NewParagraph()
	for _, child := range []ast.Node{ast.NewString([]byte("This diagram is in the language Mermaid. It is ")), link, ast.NewString([]byte("."))} {
		note.AppendChild(note, child)
	}
	diagram.Parent().InsertAfter(diagram.Parent(), diagram, note)
}

// plain returns the text of a node.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// link returns a destination of a page's link as it is in the site: another page, or a file of the repository.
func (s site) link(file, destination string) string {
	if destination == "" || strings.HasPrefix(destination, "#") || strings.Contains(destination, ":") {
		return destination
	}
	name, anchor, _ := strings.Cut(destination, "#")
	name = path.Join(path.Dir(file), name)
	if anchor != "" {
		anchor = "#" + anchor
	}
	switch {
	case slices.Contains(s.pages, name):
		return relative(target(file), target(name)) + anchor
	case name == openAPI:
		return relative(target(file), apiPage) + anchor
	case strings.HasPrefix(name, "docs/images/"):
		return relative(target(file), name)
	}
	kind := "blob"
	if info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(name))); err == nil && info.IsDir() {
		kind = "tree"
	}
	return repository + kind + "/main/" + name + anchor
}

// relative returns the path from one file of the site to another.
func relative(from, to string) string {
	rel, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		return to
	}
	return filepath.ToSlash(rel)
}
