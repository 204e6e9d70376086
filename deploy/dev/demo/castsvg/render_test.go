package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const recording = `{"version": 2, "width": 10, "height": 3}
[0.5, "o", "== be"]
[0.6, "o", "gin\r\n$ a <b>\r\n"]
[99, "o", "0123456789abc\r\n"]
[99.5, "o", "== end\r\n"]
`

func TestRead(t *testing.T) {
	t.Parallel()
	lines, err := read(recording)
	require.NoError(t, err)
	require.Equal(t, []line{{0.6, "== begin"}, {0.6, "$ a <b>"}, {99, "0123456789"}, {99, "abc"}, {99.5, "== end"}}, lines)
	require.Equal(t, lines[1:4], part(lines, "$ a", "== end"))
	require.Equal(t, []float64{0, 0, longestPause, longestPause, longestPause + 0.5}, times(lines))
	_, err = read("{}")
	require.Error(t, err)
}

// The image is well-formed XML, also with markup in the output, and has no script.
func TestRender(t *testing.T) {
	t.Parallel()
	lines, err := read(recording)
	require.NoError(t, err)
	image := render(lines)
	requireXML(t, image)
	require.Contains(t, image, "a &lt;b&gt;")
	require.Contains(t, image, "prefers-reduced-motion")
	require.NotContains(t, image, "<script")
	require.Equal(t, 3+1, strings.Count(image, "class=\""), "two headings, one command, and the group")
}

func requireXML(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// TestImage: the image in the README is the rendering of the recording beside it.
func TestImage(t *testing.T) {
	t.Parallel()
	images := filepath.Join("..", "..", "..", "..", "docs", "images")
	svg := filepath.Join(t.TempDir(), "demo.svg")
	require.NoError(t, run(filepath.Join(images, "demo.cast"), svg, castFrom, castTo))
	want, err := os.ReadFile(svg)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(images, "demo.svg"))
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "not up to date: run ./task demo:cast")
}
