package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// A section of the navigation is one of docs/README.md.
type section struct {
	Title string
	Links []navLink
}

// A navLink leads to a page of the site, by its path from the root of the site.
type navLink struct{ Title, Path string }

// navigation returns the sections of docs/README.md with their links to pages.
func (s site) navigation() ([]section, error) {
	source, err := os.ReadFile(filepath.Join(s.root, index))
	if err != nil {
		return nil, err
	}
	sections := []section{{"", []navLink{{"gpuaas", "index.html"}, {"All pages", target(index)}}}}
	_, doc := parse(source)
	err = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				sections = append(sections, section{Title: plain(n, source)})
			}
		case *ast.Link:
			to := s.link(index, string(n.Destination))
			last := &sections[len(sections)-1]
			if !strings.Contains(to, ":") && !strings.Contains(to, "#") && last.Title != "" {
				last.Links = append(last.Links, navLink{plain(n, source), relative("x", "docs/"+to)})
			}
		}
		return ast.WalkContinue, nil
	})
	return sections, err
}
