package main

import (
	"embed"
	"fmt"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed page.tmpl api.tmpl style.css
var assets embed.FS

const (
	index   = "docs/README.md"
	openAPI = "schema/openapi.yaml"
	apiPage = "docs/api.html"
)

// A site is a repository whose pages are rendered.
type site struct {
	root, out string
	pages     []string // Markdown files, by their paths from the root
	layout    *template.Template
	nav       []section
}

// A page is what the template shows.
type page struct {
	Title string
	Body  template.HTML
	// Root is the relative path from the page to the root of the site, which ends in a slash or is empty.
	Root   string
	Path   string // of the file in the site
	Source string // the address of the page's source
	Nav    []section
}

// build renders the site into a folder, which it replaces, and returns the number of pages.
func build(root, out string) (int, error) {
	layout, err := template.ParseFS(assets, "*.tmpl")
	if err != nil {
		return 0, err
	}
	s := site{root: root, out: out, layout: layout}
	if s.pages, err = markdownFiles(root); err != nil {
		return 0, err
	}
	if s.nav, err = s.navigation(); err != nil {
		return 0, err
	}
	if err := clear(out); err != nil {
		return 0, err
	}
	for _, file := range s.pages {
		if err := s.render(file); err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := s.renderAPI(); err != nil {
		return 0, fmt.Errorf("%s: %w", openAPI, err)
	}
	style, err := assets.ReadFile("style.css")
	if err != nil {
		return 0, err
	}
	if err := s.write("style.css", style); err != nil {
		return 0, err
	}
	return len(s.pages) + 1, os.CopyFS(filepath.Join(out, "docs", "images"), os.DirFS(filepath.Join(root, "docs", "images")))
}

// clear removes an earlier site. A folder without the page of the API is not one, and stays as it is.
func clear(out string) error {
	entries, err := os.ReadDir(out)
	if os.IsNotExist(err) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(apiPage))); err != nil {
		return fmt.Errorf("%s is not a site; choose an empty folder", out)
	}
	return os.RemoveAll(out)
}

// markdownFiles lists the pages: the Markdown files of the root, of docs, and of the folders of deploy.
func markdownFiles(root string) (files []string, err error) {
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "deploy/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			if err != nil {
				return nil, err
			}
			files = append(files, filepath.ToSlash(rel))
		}
	}
	if !slices.Contains(files, index) {
		return nil, fmt.Errorf("%s has no %s", root, index)
	}
	return files, nil
}

// target returns the path in the site of a Markdown file.
func target(file string) string {
	if path.Base(file) == "README.md" {
		return path.Join(path.Dir(file), "index.html")
	}
	return strings.TrimSuffix(file, ".md") + ".html"
}

// render writes the page of a Markdown file.
func (s site) render(file string) error {
	source, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return err
	}
	title, body, err := s.html(file, source)
	if err != nil {
		return err
	}
	return s.put(page{Title: title, Body: body, Path: target(file), Source: repository + "blob/main/" + file})
}

// put writes a page with the layout.
func (s site) put(p page) error {
	p.Root, p.Nav = strings.Repeat("../", strings.Count(p.Path, "/")), s.nav
	var b strings.Builder
	if err := s.layout.ExecuteTemplate(&b, "page.tmpl", p); err != nil {
		return err
	}
	return s.write(p.Path, []byte(b.String()))
}

func (s site) write(name string, content []byte) error {
	file := filepath.Join(s.out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}
