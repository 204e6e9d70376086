package webui

import (
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"
)

// maxScreenshot bounds the size of a screenshot, because docs/images is in the repository.
const maxScreenshot = 150 << 10

// main is the page without the menus of the Web UI.
const main = "main"

// screenshot stores a picture of the element that matches a selector as NAME.png, if the
// tests run with -screenshots.
func (p *page) screenshot(name, selector string) {
	p.T.Helper()
	if *screenshots == "" {
		return
	}
	picture := p.Picture(selector)
	require.Less(p.T, len(picture), maxScreenshot, name)
	require.NoError(p.T, os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644))
}
